"""An objective from outside the package: windows are read from their end, so that each earlier token is predicted."""

from pathlib import Path

import numpy as np
from pydantic import Field

from relm.examples.causal import CausalExamples, causal_lengths
from relm.examples.contract import IGNORED, Batch, Integers, Vocabulary
from relm.examples.draws import Draws, drawn_tokens
from relm.recipes.objectives import TOKEN_STREAM, Objective, ObjectiveDeclaration, register_objective
from relm.recipes.section import Section


class Backwards(Section):
    """Predict each earlier token of windows that are read from their end."""

    unscored: int = Field(default=0, ge=0)
    """Tokens at the beginning of the reversed window that are not scored."""


class BackwardsExamples:
    def __init__(self, manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> None:
        self.objective = objective
        self.forwards = CausalExamples(manifest, split, objective.sequence_length, check_content=check_content)

    def __len__(self) -> int:
        return len(self.forwards)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        return _reversed(self.forwards.windows(indices), self.objective)


def _reversed(windows: Integers, objective: Objective) -> Batch:
    inputs, labels = windows[:, :0:-1].copy(), windows[:, -2::-1].copy()
    labels[:, : objective.backwards.unscored] = IGNORED
    return {"input_ids": np.ascontiguousarray(inputs), "labels": np.ascontiguousarray(labels)}


def generate(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    return _reversed(drawn_tokens(keys, objective.sequence_length + 1, vocabulary.size), objective)


lengths = causal_lengths

register_objective(
    ObjectiveDeclaration(
        name="backwards",
        layout=TOKEN_STREAM,
        labels={"next_token": "labels"},
        pregenerate="relm.examples.pregenerate:pregenerate_stream",
        read="backwards:BackwardsExamples",
        generate="backwards:generate",
        lengths="backwards:lengths",
        options=Backwards,
    )
)
