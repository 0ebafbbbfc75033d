"""The generated tokens of Graphcore's GPT-2 for PyTorch v3.4.1, `--dataset generated`, with which it measures speed.

The original seeds numpy's generator with `--seed` (ipu_options.py) and draws all samples at once, uniformly from 1 to the
vocabulary's size - 1 (tools.py); it reads them in the same order in each epoch. These are the same tokens, drawn again a block
at a time, so that only one block is in memory; documents are not read.
"""

from pathlib import Path
from typing import Any

import numpy as np

from relm.examples.as_published.graphcore_gpt2 import require_seed_of_numpy
from relm.examples.contract import Batch, Integers, require_indices
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Objective

BLOCK = 4096
"""Samples to draw at once. Draws in blocks equal one draw of all samples."""


class GeneratedTokens:
    """Samples of L + 1 random tokens, in a fixed order."""

    is_ordered = True
    """Position p of a run is example p of its epoch, because the original does not shuffle them."""

    def __init__(self, chosen: AsPublished, sequence_length: int) -> None:
        """Set the seed and the sizes; `sequence_length` is L."""
        require_seed_of_numpy(chosen)
        assert chosen.examples is not None, "the section sees to it"
        assert chosen.vocabulary_size is not None, "the section sees to it"
        self.size, self.vocabulary_size = chosen.examples, chosen.vocabulary_size
        self.sequence_length = sequence_length
        self._generator = np.random.RandomState(chosen.seed)
        self._states: list[Any] = [self._generator.get_state()]
        """The generator's state before each block that was reached, and before the one after it."""
        self._newest: tuple[int, Integers] | None = None

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return ``input_ids`` and ``labels``, (examples, L), of these samples; every epoch has the same."""
        require_indices(indices, self.size)
        samples = np.empty((len(indices), self.sequence_length + 1), dtype=np.int64)
        blocks = indices // BLOCK
        for block in np.unique(blocks).tolist():
            chosen = blocks == block
            samples[chosen] = self._block(block)[indices[chosen] % BLOCK]
        return {"input_ids": samples[:, :-1].copy(), "labels": samples[:, 1:].copy()}

    def _block(self, number: int) -> Integers:
        """Return the samples of a block, drawn unless it is the newest; those before it are drawn once for its state."""
        if self._newest is not None and self._newest[0] == number:
            return self._newest[1]
        for block in range(min(number, len(self._states) - 1), number + 1):
            self._generator.set_state(self._states[block])
            drawn = self._generator.randint(1, self.vocabulary_size, size=(BLOCK, self.sequence_length + 1))
            if block + 1 == len(self._states):
                self._states.append(self._generator.get_state())
        self._newest = number, drawn
        return drawn


def open_generated_tokens(
    manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True
) -> GeneratedTokens:
    """Open the samples as `relm.examples.builders.open_examples` does; no shard of the manifest is read."""
    assert objective.as_published is not None, "the section sees to it"
    return GeneratedTokens(objective.as_published, objective.sequence_length)
