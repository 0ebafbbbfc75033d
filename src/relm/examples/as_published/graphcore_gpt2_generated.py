"""The generated tokens of Graphcore's GPT-2 for PyTorch v3.4.1, `--dataset generated`, with which it measures speed.

The original draws all samples at the start, uniformly from 1 to the vocabulary's size - 1, and reads them in the same order in
each epoch. Its generator has no seed; here sample i follows from the seed and i alone, and no document is read.
"""

from pathlib import Path

import numpy as np

from relm.examples.contract import Batch, Integers, require_indices
from relm.examples.draws import drawn_tokens
from relm.examples.order import row_keys
from relm.recipes.objectives import AsPublished, Objective

BUILDER = "graphcore_gpt2_generated"


class GeneratedTokens:
    """Samples of L + 1 random tokens, in a fixed order."""

    is_ordered = True
    """Position p of a run is example p of its epoch, because the original does not shuffle them."""

    def __init__(self, chosen: AsPublished, sequence_length: int) -> None:
        """Set the seed and the sizes.

        Args:
            chosen: with `examples`, `vocabulary_size` and `seed`.
            sequence_length: L.
        """
        assert chosen.examples is not None, "the section sees to it"
        assert chosen.vocabulary_size is not None, "the section sees to it"
        self.size, self.largest, self.seed = chosen.examples, chosen.vocabulary_size - 1, chosen.seed
        self.sequence_length = sequence_length

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return ``input_ids`` and ``labels``, (examples, L), of these samples; every epoch has the same.

        Raises:
            IndexError: there is no such sample.
        """
        require_indices(indices, self.size)
        keys = row_keys(BUILDER, self.seed, np.zeros_like(indices), indices)
        samples = 1 + drawn_tokens(keys, self.sequence_length + 1, self.largest)
        return {"input_ids": samples[:, :-1].copy(), "labels": samples[:, 1:].copy()}


def open_generated_tokens(
    manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True
) -> GeneratedTokens:
    """Open the samples as `relm.examples.builders.open_examples` does; no shard of the manifest is read."""
    assert objective.as_published is not None, "the section sees to it"
    return GeneratedTokens(objective.as_published, objective.sequence_length)
