"""The options of evaluations that say how they run: the device, its precision and batches, and the split over IPUs."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.devices import DEVICES, HOST, list_fine_tuning_devices, list_inference_devices
from relm.recipes.evaluation.fine_tuning import FineTuning
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.section import validate
from relm.steps.contract import Argument, Arguments, argument, name_of, path, plain_yaml, positive, process_count

FINE_TUNING = {"first_moment_precision": "float32"}
"""The default of a pipeline that differs from a recipe's: PopTorch needs it to clip the gradient."""


def mapping(text: str) -> dict[str, Any]:
    """Return a text of JSON, or YAML, as a mapping."""
    if not isinstance(found := plain_yaml(text), dict):
        raise argparse.ArgumentTypeError(f"expected a mapping such as '{{layers_per_ipu: [3, 9]}}', found {text:.99}")
    return found


def device_argument(choices: Callable[[], list[str]]) -> Argument:
    """Return the argument for the device, one of those that a function lists."""
    return argument("--device", default=HOST, choices=choices, help="default: cpu")


THREADS = argument("--threads", type=process_count, metavar="N", help="threads of the CPU; default: all available cores")
BATCH_TOKENS = argument("--batch-tokens", type=positive, metavar="N", help="tokens at once; default: depends on the device")
ON_IPUS = (
    argument("--layers-per-ipu", type=int, nargs="+", metavar="N", help="layers on each IPU; default: all on one"),
    argument(
        "--available-memory-proportion",
        type=float,
        nargs="+",
        metavar="X",
        help="share of each IPU's memory for matrix products; default: 0.2 on one IPU, PopTorch's on several",
    ),
    path("--executable-cache", "folder that keeps what is compiled for IPUs", required=False),
)
EXECUTION_OF_BATCHES = (
    device_argument(list_inference_devices),
    argument(
        "--precision",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="of matrix products; default: float32; float16: with --device ipu",
    ),
    *ON_IPUS,
    THREADS,
)
EXECUTION = (*EXECUTION_OF_BATCHES, BATCH_TOKENS)
EXECUTION_OF_TUNING = (
    device_argument(list_fine_tuning_devices),
    argument(
        "--precision",
        default="float32",
        choices=("float32", "bfloat16"),
        help="of matrix products; default: float32, which a tpu rounds to bfloat16; an ipu has its pipeline's",
    ),
    argument(
        "--pipeline",
        type=mapping,
        metavar="JSON",
        help="with --device ipu: split of the model, as run.pipeline of a recipe, in JSON or YAML; gradient_accumulation "
        "follows from the batch, and first_moment_precision is float32 unless it is given",
    ),
    THREADS,
    BATCH_TOKENS,
    argument(
        "--micro-batch-size", type=positive, metavar="N", help="sequences of a forward pass; default: depends on the device"
    ),
    argument("--checkpoint-interval", type=positive, default=500, metavar="STEPS", help="between checkpoints; default: 500"),
    argument("--keep-models", action="store_true", help="keep the weights of each seed next to its answers"),
)


def read_execution(a: Arguments, tuning: FineTuning | None = None) -> Any:
    """Return the `Execution` that a command requests; `tuning` has the options of an evaluation that fine-tunes a model."""
    from relm.evaluation.execution import Execution

    if tuning is None or not DEVICES[a.device].pipelined:  # which has its pipeline's precision
        known = {"ipu": ("float32", "float16")}.get(a.device, ("float32", "bfloat16"))
        if a.precision not in known:
            found = f"{a.device} computes in {' and '.join(known)}, found {a.precision}"
            raise RelmError(f"--precision: {found}; choose one of these")
    pipeline = None
    if tuning is not None and a.pipeline is not None:
        content = FINE_TUNING | _with_accumulation(a.pipeline, tuning.batch_size)
        pipeline = validate(Pipeline, content, Path("--pipeline"))
    by_default = DEVICES[a.device].evaluation_batch_tokens or DEVICES[HOST].evaluation_batch_tokens
    tokens = getattr(a, "batch_tokens", None) or by_default
    return Execution(a.device, a.precision, a.threads, tokens, pipeline=pipeline, **_read_options_of_ipus(a))


def _read_options_of_ipus(a: Arguments) -> dict[str, Any]:
    """Return the options of IPUs that infer which a command gives, if its device takes them."""
    options = {name_of(option): getattr(a, name_of(option), None) for option in ON_IPUS}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if value is not None}
    if given and not DEVICES[a.device].runs_inference:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise RelmError(f"{option}: needs --device ipu or ipu_simulator, found {a.device}; remove it")
    shares, ipus = given.get("available_memory_proportion"), len(given.get("layers_per_ipu", [0]))
    if shares is not None and (len(shares) != ipus or not all(0 < share <= 1 for share in shares)):
        found = " ".join(f"{share:g}" for share in shares)
        each = "the IPU" if ipus == 1 else f"each of {ipus} IPUs"
        raise RelmError(f"--available-memory-proportion: expected a number above 0 and up to 1 for {each}, found {found}")
    return given


def _with_accumulation(content: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """Return the keys of a pipeline with the micro-batches that make up the batch, unless they are there."""
    size, replicas = content.get("micro_batch_size", 1), content.get("replicas", 1)
    if "gradient_accumulation" in content or not (type(size) is type(replicas) is int and size > 0 and replicas > 0):
        return content
    if batch_size % (size * replicas):
        raise RelmError(
            f"--batch-size is {batch_size}, but --pipeline has micro_batch_size {size} x replicas {replicas}; give a multiple "
            f"of {size * replicas}"
        )
    return {**content, "gradient_accumulation": batch_size // (size * replicas)}
