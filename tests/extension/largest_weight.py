"""An evaluation from outside the package: the largest weight of a model, declared by one public call."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from safetensors.numpy import load_file

from relm.artifact import sha256_of
from relm.evaluation.runner import Scored, evaluation
from relm.recipes.evaluation.evaluations import EvaluationDeclaration
from relm.recipes.recipe import register_evaluation
from relm.recipes.section import Section

if TYPE_CHECKING:  # it imports torch, and `relm --help` imports this module
    from relm.evaluation.execution import Execution


class LargestWeight(Section):
    """Options of the largest weight."""

    factor: float = Field(default=1.0, gt=0)
    """Factor of the figure."""
    signed: bool = False
    """Take the largest weight, not the largest magnitude."""
    weights: list[str] = Field(default_factory=list)
    """Names of the weights that count; none: all."""


@evaluation
def evaluate_largest_weight(model_folder: Path, context: int, options: LargestWeight, execution: "Execution") -> Scored:
    """Take the largest weight of a model as its figure."""
    weights = model_folder / "model.safetensors"
    chosen = [tensor for name, tensor in load_file(weights).items() if name in options.weights or not options.weights]
    largest = max(float((tensor if options.signed else abs(tensor)).max()) for tensor in chosen)
    figures = {"largest": largest, "scaled": largest * options.factor}
    protocol = {"in_words": f"The largest weight on a {execution.device}.", "context": context}
    return Scored(figures, protocol, sha256_of(weights), f"the largest weight is {largest:.4f}")


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
