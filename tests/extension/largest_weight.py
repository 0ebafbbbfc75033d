"""An evaluation from outside the package: the largest weight of a model, declared by one public call."""

from pathlib import Path

from pydantic import Field
from safetensors.numpy import load_file

from relm.artifact import sha256_of
from relm.evaluation.models import Execution
from relm.evaluation.result import Result
from relm.recipes.evaluations import EvaluationDeclaration, register_evaluation
from relm.recipes.section import Section


class LargestWeight(Section):
    """Options of the largest weight."""

    factor: float = Field(default=1.0, gt=0)
    """Factor of the figure."""


def evaluate_largest_weight(
    *, model_folder: Path, output: Path, task: str, context: int, options: LargestWeight, execution: Execution
) -> str:
    """Write the largest weight of a model as its figure."""
    weights = model_folder / "model.safetensors"
    largest = max(float(abs(tensor).max()) for tensor in load_file(weights).values())
    figures = {"largest": largest, "scaled": largest * options.factor}
    protocol = {"in_words": f"The largest weight on a {execution.device}.", "context": context}
    Result(task=task, protocol=protocol, figures=figures, model_sha256=sha256_of(weights)).write(output)
    return f"the largest weight is {largest:.4f}"


register_evaluation(
    EvaluationDeclaration(
        name="largest_weight",
        summary="the largest weight of a model",
        run="largest_weight:evaluate_largest_weight",
        inputs=(),
        objectives=("causal", "masked"),
        facts=("context",),
        options=LargestWeight,
    )
)
