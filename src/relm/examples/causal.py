"""The causal objective: documents become one stream of tokens, and windows of it become examples.

`<|endoftext|>` follows every document. Example i with sequence length L is tokens i L to i L + L, both included: L inputs and,
shifted by one, L labels. Neighbours share one token, so every token but the stream's first is a label exactly once, save the
rest at the end that does not fill a window.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.manifest import read_manifest
from relm.examples.storage import TokenStream

Integers = npt.NDArray[np.int64]


def with_end_of_text(
    tokens: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], end_of_text_id: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Concatenated documents and their sizes, with the end of text after each.

    >>> with_end_of_text(np.array([5, 6, 7], "i4"), np.array([2, 0, 1], "i4"), 0)
    (array([5, 6, 0, 0, 7, 0], dtype=int32), array([3, 1, 2], dtype=int32))
    """
    return np.insert(tokens, np.cumsum(sizes), end_of_text_id), sizes + np.int32(1)


def window_count(tokens: int, sequence_length: int) -> int:
    """How many whole windows of `sequence_length` labels a stream of so many tokens has."""
    return max(tokens - 1, 0) // sequence_length


class CausalExamples:
    """All examples of one split, by number."""

    def __init__(self, manifest: Path, split: str, sequence_length: int, check_content: bool = True) -> None:
        """Open the shards.

        Args:
            manifest: of the examples.
            split: train or held_out.
            sequence_length: labels in an example.
            check_content: compare each shard's sha256 with the manifest, not its size alone.

        Raises:
            RelmError: a shard is absent or not the manifest's, or the split is shorter than one example.
        """
        self.stream = TokenStream(manifest, read_manifest(manifest).split(split, manifest), check_content)
        self.sequence_length = sequence_length
        if not len(self):
            raise RelmError(
                f"{manifest}: split {split} has {len(self.stream):,} tokens, an example of sequence_length "
                f"{sequence_length} needs {sequence_length + 1:,}; shorten it or use more documents"
            )

    def __len__(self) -> int:
        return window_count(len(self.stream), self.sequence_length)

    def batch(self, indices: npt.NDArray[np.integer]) -> Integers:
        """The examples with these numbers, int64 of shape (examples, sequence_length + 1).

        Raises:
            IndexError: there is no such example.
        """
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise IndexError(f"examples are 0 to {len(self) - 1}, asked for {indices.min()} to {indices.max()}")
        length = self.sequence_length
        batch = np.empty((len(indices), length + 1), dtype=np.int64)
        for row, index in zip(batch, indices.tolist(), strict=True):
            row[:] = self.stream.tokens(index * length, index * length + length + 1)
        return batch
