"""What the TPU's compiler is asked to do otherwise than by itself: in training and in `relm compile` alike."""

from collections.abc import MutableMapping

VARIABLE = "LIBTPU_INIT_ARGS"
OPTIONS = {
    # Dropout's random numbers are drawn by the device that needs them, from the seed and its own number. By itself the compiler
    # has each device draw those of the global batch, and throw all but its own away: for BERT large at 512 tokens and 16
    # sequences a core 2 GiB at a time. "Unsafe" is that the numbers depend on how many devices there are, as they do anyway.
    "xla_tpu_spmd_rng_bit_generator_unsafe": True,
}


def set_options(environment: MutableMapping[str, str]) -> None:
    """Add the options to what libtpu reads when it is loaded; one that is there already stays as it is."""
    given = environment.get(VARIABLE, "").split()
    names = {word.lstrip("-").partition("=")[0] for word in given}
    ours = [f"--{name}={str(value).lower()}" for name, value in OPTIONS.items() if name not in names]
    environment[VARIABLE] = " ".join([*given, *ours])
