"""Options of the TPU's compiler that differ from its defaults, in training and in `relm compile` alike."""

from collections.abc import MutableMapping

VARIABLE = "LIBTPU_INIT_ARGS"
OPTIONS = {
    # Each device draws its own random numbers for dropout, from the seed and its index. By default the compiler has each device
    # draw those of the global batch and discard all but its own: for BERT large at 512 tokens and 16 sequences a core 2 GiB at
    # a time. "Unsafe" means that the numbers depend on the count of devices, as they do anyway.
    "xla_tpu_spmd_rng_bit_generator_unsafe": True,
}


def set_options(environment: MutableMapping[str, str]) -> None:
    """Add the options to the variable that libtpu reads when it is loaded; one that is set already stays unchanged."""
    given = environment.get(VARIABLE, "").split()
    names = {word.lstrip("-").partition("=")[0] for word in given}
    ours = [f"--{name}={str(value).lower()}" for name, value in OPTIONS.items() if name not in names]
    environment[VARIABLE] = " ".join([*given, *ours])
