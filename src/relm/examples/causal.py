"""The causal objective: concatenate documents into one stream of tokens, whose windows are the examples.

An end of text follows every document if the tokenizer has one. Example i with sequence length L is tokens i S to i S + L, both
included: L inputs and, shifted by one, L labels. The stride S is L by default. With S = L neighbours share one token, so every
token except the stream's first is a label exactly once, apart from the last ones, which fill no window. With a smaller S
windows overlap. With S = 1 a window begins at each of the first n - L of n tokens; nanoGPT draws such windows with replacement.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.contract import Batch, Integers, Vocabulary, require_indices
from relm.examples.draws import Draws, drawn_tokens
from relm.examples.manifest import Manifest, read_manifest
from relm.examples.storage import TokenStream
from relm.recipes.objectives import TOKEN_STREAM, Causal, Objective


def with_end_of_text(
    tokens: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], end_of_text_id: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return concatenated documents and their sizes, with the end of text after each.

    >>> with_end_of_text(np.array([5, 6, 7], "i4"), np.array([2, 0, 1], "i4"), 0)
    (array([5, 6, 0, 0, 7, 0], dtype=int32), array([3, 1, 2], dtype=int32))
    """
    return np.insert(tokens, np.cumsum(sizes), end_of_text_id), sizes + np.int32(1)


def window_count(tokens: int, sequence_length: int, stride: int | None = None) -> int:
    """Return how many whole windows of `sequence_length` labels `tokens` tokens have, one every `stride` tokens."""
    return max(0, 1 + (tokens - sequence_length - 1) // (stride or sequence_length))


def document_ids(tokens: Integers, end_of_text_id: int) -> Integers:
    """Return the number of each token's document in its row, (rows, length), counted from 0; an end of text ends its document.

    >>> document_ids(np.array([[5, 6, 0, 7, 0, 0, 8]]), end_of_text_id=0)
    array([[0, 0, 0, 1, 1, 2, 3]])
    """
    ends = tokens == end_of_text_id
    ids: Integers = np.cumsum(ends, axis=1) - ends
    return ids


def open_windows(manifest: Path, split: str, check_content: bool) -> tuple[TokenStream, Manifest]:
    """Open the token stream of a split, and return it with its manifest."""
    facts = read_manifest(manifest)
    if facts.layout != TOKEN_STREAM:
        raise RelmError(f"{manifest}: expected a stream of tokens, found a {facts.layout} of {facts.objective} examples")
    return TokenStream(manifest, facts.split(split, manifest), check_content), facts


class CausalExamples:
    """The examples of one split, by index."""

    def __init__(
        self, manifest: Path, split: str, sequence_length: int, options: Causal | None = None, check_content: bool = True
    ) -> None:
        """Open the shards of a split; `check_content` compares each sha256 with the manifest, otherwise only the size."""
        self.options = options or Causal()
        self.stream, facts = open_windows(manifest, split, check_content)
        self.sequence_length = sequence_length
        self.end_of_text_id = facts.tokenizer.end_of_text_id
        if (self.options.end_of_text == "never") != (self.end_of_text_id is None):
            has, key = ("no", "never") if self.end_of_text_id is None else ("an", "after or between")
            raise RelmError(
                f"{manifest}: its tokenizer has {has} end-of-text token, but causal.end_of_text is {self.options.end_of_text}; "
                f"set it to {key} or use another tokenizer"
            )
        if not len(self):
            raise RelmError(
                f"{manifest}: split {split} has {self.tokens:,} tokens, but an example of sequence_length "
                f"{sequence_length} needs {sequence_length + 1:,}; shorten it or use more documents"
            )

    @property
    def is_drawn(self) -> bool:
        """Return True if a run draws the examples with replacement; see `contract.numbers_at`."""
        return self.options.sampling == "with_replacement"

    @property
    def tokens(self) -> int:
        """Return the number of tokens, without the last end of text if one belongs only between documents."""
        return len(self.stream) - (self.options.end_of_text == "between" and len(self.stream) > 0)

    def __len__(self) -> int:
        return window_count(self.tokens, self.sequence_length, self.options.stride)

    def windows(self, indices: npt.NDArray[np.integer]) -> Integers:
        """Return the examples with these indices, int64 (examples, sequence_length + 1)."""
        require_indices(indices, len(self))
        starts: Integers = indices.astype(np.int64) * (self.options.stride or self.sequence_length)
        return self.stream.windows(starts, self.sequence_length + 1)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return `input_ids` and `labels`, (examples, sequence_length), and `document_ids` with document attention."""
        windows = self.windows(indices)
        batch = {"input_ids": windows[:, :-1].copy(), "labels": windows[:, 1:].copy()}
        if self.options.document_attention:
            assert self.end_of_text_id is not None
            batch["document_ids"] = document_ids(batch["input_ids"], self.end_of_text_id)
        return batch


def open_causal(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> CausalExamples:
    """Open the examples of a split as `relm.examples.builders.open_examples` does; nothing is drawn."""
    return CausalExamples(manifest, split, objective.sequence_length, objective.causal, check_content)


def generate_causal(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    """Return a batch of random windows, one for each key."""
    windows = drawn_tokens(keys, objective.sequence_length + 1, vocabulary.size)
    batch = {"input_ids": windows[:, :-1].copy(), "labels": windows[:, 1:].copy()}
    if objective.causal.document_attention:
        batch["document_ids"] = document_ids(batch["input_ids"], vocabulary.special.end_of_text or 0)
    return batch


def causal_lengths(objective: Objective) -> tuple[int, int, int, bool]:
    """Return the lengths of an example, which is scored at every position, and True for attention within documents."""
    return objective.sequence_length, 0, objective.sequence_length, objective.causal.document_attention
