"""Options of the TPU's compiler that differ from its defaults, in training and in `relm compile` alike."""

from collections.abc import Mapping, MutableMapping

VARIABLE = "LIBTPU_INIT_ARGS"
OPTIONS: Mapping[str, bool] = {
    # Each device draws only its random numbers for dropout, from the seed and its index. By default each device draws those of
    # the global batch and discards most: for BERT large at 512 tokens and 16 sequences a core 2 GiB at a time. "Unsafe" means
    # that the numbers depend on the count of devices, as they do anyway.
    "xla_tpu_spmd_rng_bit_generator_unsafe": True,
}
# Options that torch_xla 2.9 sets when it is imported on a machine with a TPU, and so in training; a test compares them.
_OF_TORCH_XLA: Mapping[str, bool | int] = {
    "xla_tpu_use_enhanced_launch_barrier": False,
    "xla_latency_hiding_scheduler_rerun": 1,
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
    "xla_tpu_enable_flash_attention": False,
}
# For v5e and v5p alike.
_OF_TORCH_XLA_V5 = {"xla_enable_async_all_gather": True, "xla_enable_async_collective_permute": True}


def set_options(environment: MutableMapping[str, str], options: Mapping[str, bool | int] = OPTIONS) -> None:
    """Add options to the variable that libtpu reads when it is loaded, except those already set."""
    given = environment.get(VARIABLE, "").split()
    names = {word.lstrip("-").partition("=")[0] for word in given}
    ours = [f"--{name}={str(value).lower()}" for name, value in options.items() if name not in names]
    environment[VARIABLE] = " ".join([*given, *ours])


def training_options(layout: str) -> dict[str, bool | int]:
    """Return all training options for a slice with a layout such as v3:2x2, in a process without torch_xla or a TPU."""
    return {**_OF_TORCH_XLA, **(_OF_TORCH_XLA_V5 if layout.startswith("v5") else {}), **OPTIONS}


def training_variables(layout: str) -> dict[str, str]:
    """Return the other environment variables for libtpu that torch_xla sets on a TPU of a slice's generation."""
    return {"TPU_MEGACORE": "megacore_dense"} if layout.startswith("v4:") else {}
