"""The option `--pipeline` of fine-tuning: the split of a model over IPUs, as `run.pipeline` of a recipe."""

import json
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.evaluation.fine_tuning import FineTuning
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.section import read_yaml, validate
from relm.steps.contract import Arguments, argument

PIPELINE = argument(
    "--pipeline",
    metavar="JSON",
    help="with --device ipu: split of the model, as run.pipeline of a recipe, or a YAML file with it; gradient_accumulation "
    "follows from the batch, and first_moment_precision is float32 unless it is given",
)
_SOURCE = Path("--pipeline")
FINE_TUNING = {"first_moment_precision": "float32"}
"""The default that differs from a recipe's: the gradient is clipped, for which PopTorch needs it."""


def read_pipeline(a: Arguments, options: FineTuning | None) -> Pipeline | None:
    """Return the pipeline that a command gives; None without one.

    Args:
        a: the arguments of the command, which may have no such option.
        options: the options of fine-tuning; None: the command fine-tunes nothing.
    """
    if getattr(a, "pipeline", None) is None:
        return None
    if options is None:
        raise RelmError("--pipeline: goes with an evaluation that fine-tunes a model; leave it out")
    given: str = a.pipeline
    if given.lstrip().startswith("{"):
        content, source = _parse(given), _SOURCE
    else:
        source = Path(given)
        content = read_yaml(source)
    return validate(Pipeline, FINE_TUNING | _with_accumulation(content, options.batch_size), source)


def _parse(text: str) -> dict[str, Any]:
    """Return the object in a JSON text that begins with a brace."""
    try:
        found: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RelmError(f"--pipeline: not valid JSON ({error}); quote it for the shell, as in --pipeline '{{...}}'") from None
    return found


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
