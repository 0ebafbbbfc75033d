"""The span-corruption objective: the inputs are a text with masked spans, the targets are the masked tokens.

T5's (Raffel et al. 2020, arXiv 1910.10683, section 3.1.4, and the functions `random_spans_helper` and `random_spans_noise_mask`
of its preprocessors). Kept and masked spans alternate, beginning with a kept one. The counts of masked tokens and spans follow
from the length alone, so every example has the same shape and nothing is padded. A sentinel replaces each masked span in the
inputs; the targets are each sentinel followed by the tokens that it replaces. Sentinels are `<extra_id_0>`, `<extra_id_1>` and
so on, with descending ids from the last of the vocabulary. Both sequences end with the end of text.
"""

from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.causal import TokenWindows, open_windows
from relm.examples.contract import Batch, Integers, Vocabulary, require_indices
from relm.examples.draws import Draws, drawn, drawn_tokens
from relm.examples.order import row_keys
from relm.recipes.objectives import Objective, SpanCorruption

# Count of sentinels at the end of T5's vocabulary, and of mT5's.
SENTINELS = 100
# A tokenizer without sentinels is recognised by the share of their ids in the first tokens of the text.
INSPECTED_TOKENS, MOST_SENTINELS = 2**20, 1e-3

Mask = npt.NDArray[np.bool_]


class CorruptionShape(NamedTuple):
    """The sizes of a text's corruption; all except `spans` are counts of tokens."""

    raw_length: int
    """Tokens of the text."""
    masked: int
    spans: int
    """Count of masked spans, and of kept ones."""

    @property
    def kept(self) -> int:
        """Return the count of kept tokens."""
        return self.raw_length - self.masked

    @property
    def input_length(self) -> int:
        """Return the length of the inputs: kept tokens, sentinels and the end of text."""
        return self.kept + self.spans + 1

    @property
    def target_length(self) -> int:
        """Return the length of the targets: masked tokens, sentinels and the end of text."""
        return self.masked + self.spans + 1


def shape_of(raw_length: int, options: SpanCorruption) -> CorruptionShape:
    """Return the sizes for a text of two tokens or more, with at least one masked span and one kept token.

    >>> shape_of(568, SpanCorruption())
    CorruptionShape(raw_length=568, masked=85, spans=28)
    """
    masked = min(max(round(raw_length * options.noise_density), 1), raw_length - 1)
    return CorruptionShape(raw_length, masked, max(round(masked / options.mean_span_length), 1))


def fitting_shape(sequence_length: int, options: SpanCorruption) -> CorruptionShape:
    """Return the sizes of the longest text whose inputs are exactly `sequence_length` tokens."""
    longest = 4
    while shape_of(longest, options).input_length <= sequence_length:
        longest *= 2
    # One token more makes the inputs longer by one or not at all, so the input length ascends with the text's.
    fitting = bisect_right(range(2, longest), sequence_length, key=lambda length: shape_of(length, options).input_length)
    shape = shape_of(fitting + 1, options)
    if options.noise_density == 0.5 and shape.target_length > shape.input_length:
        shape = shape_of(fitting, options)  # as T5: of two texts that fit, the one with equal lengths
    if fitting == 0 or shape.input_length != sequence_length or shape.spans > shape.kept:
        raise RelmError(
            f"span_corruption: no text fits sequence_length {sequence_length} with noise_density {options.noise_density} and "
            f"mean_span_length {options.mean_span_length}; lower noise_density or raise the others"
        )
    if shape.spans > SENTINELS:
        raise RelmError(
            f"span_corruption: {shape.spans} spans would be masked in a sequence, but there are {SENTINELS} sentinels; raise "
            "mean_span_length or shorten sequence_length"
        )
    return shape


def segment_starts(keys: Draws, length: int, segments: int) -> Mask:
    """Return the starts of segments of rows of `length`, split at random, with all splits equally likely.

    Args:
        keys: (rows,), which decide the split of each row.
        segments: count of segments, 1 to length, none of them empty.

    Returns:
        (rows, length): True at the first position of each segment.
    """
    starts = np.zeros((len(keys), length), dtype=np.bool_)
    starts[:, 0] = True
    if segments > 1:
        # The positions after the first with the smallest numbers, which are unique in a row.
        numbers = drawn(keys[:, None], np.arange(1, length)[None])
        starts[:, 1:] = numbers <= np.partition(numbers, segments - 2, axis=1)[:, segments - 2, None]
    return starts


def masked_tokens(keys: Draws, shape: CorruptionShape) -> Mask:
    """Return (rows, raw_length), True for masked tokens: spans of random lengths, alternately kept and masked."""
    lengths = np.empty((len(keys), shape.spans, 2), dtype=np.int64)
    for number, total in enumerate((shape.kept, shape.masked)):
        starts = segment_starts(drawn(keys, number), total, shape.spans)
        firsts = np.nonzero(starts)[1].reshape(len(keys), shape.spans)
        lengths[:, :, number] = np.diff(firsts, append=total)
    is_masked = np.tile(np.array([False, True]), len(keys) * shape.spans)
    return np.repeat(is_masked, lengths.ravel()).reshape(len(keys), shape.raw_length)


def with_sentinels(tokens: Integers, replaced: Mask, length: int, first_sentinel: int, end_of_text_id: int) -> Integers:
    """Return the tokens with a sentinel for each replaced span, and the end of text.

    Args:
        tokens: (rows, tokens).
        replaced: (rows, tokens); all rows have the same counts of replaced tokens and spans.
        length: length of the result, which follows from these counts.

    >>> with_sentinels(np.array([[5, 6, 7, 8, 9]]), np.array([[False, True, True, False, True]]), 5, 99, 1)
    array([[ 5, 99,  8, 98,  1]])
    """
    starts = replaced.copy()
    starts[:, 1:] &= ~replaced[:, :-1]
    values = np.where(starts, first_sentinel + 1 - np.cumsum(starts, axis=1), tokens)
    kept = values[~replaced | starts].reshape(len(tokens), length - 1)
    return np.insert(kept, length - 1, end_of_text_id, axis=1)


def corrupted(tokens: Integers, keys: Draws, shape: CorruptionShape, first_sentinel: int, end_of_text_id: int) -> Batch:
    """Return texts as a batch of examples.

    Args:
        tokens: (rows, raw_length).
        keys: (rows,), which decide the spans of each row.
    """
    masked = masked_tokens(keys, shape)
    inputs = with_sentinels(tokens, masked, shape.input_length, first_sentinel, end_of_text_id)
    targets = with_sentinels(tokens, ~masked, shape.target_length, first_sentinel, end_of_text_id)
    return {"input_ids": inputs, "attention_mask": np.ones(inputs.shape, dtype=np.bool_), "labels": targets}


class SpanCorruptionExamples:
    """The examples of one split, by index: the stream of tokens in pieces of one length, without the rest at its end."""

    def __init__(self, manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> None:
        """Open the shards.

        Args:
            manifest: the manifest of a stream of tokens.
            split: train or held_out.
            objective: sequence_length, and the options of spans.
            seed: seed of the spans.
            check_content: compare each shard's sha256 with the manifest, not its size alone.

        Raises:
            RelmError: a shard is absent or not the manifest's, the split is shorter than one example, no text fits the
                sequence length, or the tokenizer has no end of text or no sentinels.
        """
        self.shape = fitting_shape(objective.sequence_length, objective.span_corruption)
        self.seed = seed
        self.stream, facts = open_windows(manifest, split, check_content)
        if facts.tokenizer.end_of_text_id is None:
            raise RelmError(f"{manifest}: its tokenizer has no end-of-text token, which ends each sequence; use another one")
        self.end_of_text_id = facts.tokenizer.end_of_text_id
        self.first_sentinel = facts.tokenizer.vocabulary_size - 1
        _require_sentinels(self.stream, self.first_sentinel, self.end_of_text_id, manifest)
        if not len(self):
            raise RelmError(
                f"{manifest}: split {split} has {len(self.stream):,} tokens, an example of sequence_length "
                f"{objective.sequence_length} takes {self.shape.raw_length:,}; shorten it or use more documents"
            )

    def __len__(self) -> int:
        return len(self.stream) // self.shape.raw_length

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return `input_ids` and `attention_mask`, (examples, sequence_length), and `labels`, (examples, target_length).

        Raises:
            IndexError: there is no such example.
        """
        require_indices(indices, len(self))
        tokens = self.stream.windows(indices.astype(np.int64) * self.shape.raw_length, self.shape.raw_length)
        keys = row_keys("hidden spans", self.seed, epochs, indices)
        return corrupted(tokens, keys, self.shape, self.first_sentinel, self.end_of_text_id)


def _require_sentinels(stream: TokenWindows, first_sentinel: int, end_of_text_id: int, manifest: Path) -> None:
    last = first_sentinel - SENTINELS + 1
    tokens = stream.tokens(0, INSPECTED_TOKENS)
    found = int(np.count_nonzero(tokens >= last))
    if last < 0 or end_of_text_id >= last or found > MOST_SENTINELS * len(tokens):
        raise RelmError(
            f"{manifest}: the last {SENTINELS} ids of its vocabulary, {last} to {first_sentinel}, should be the sentinels "
            f"<extra_id_N>, but they are {found:,} of its first {len(tokens):,} tokens, and {end_of_text_id} is the end of "
            "text; use a tokenizer that has sentinels"
        )


def generate_span_corruption(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    """Return a batch of random texts, one for each key, corrupted as real ones are."""
    shape = fitting_shape(objective.sequence_length, objective.span_corruption)
    tokens = drawn_tokens(keys, shape.raw_length, vocabulary.size)
    draws = drawn(keys, shape.raw_length)
    return corrupted(tokens, draws, shape, vocabulary.size - 1, vocabulary.special.end_of_text or 0)


def span_corruption_lengths(objective: Objective) -> tuple[int, int, int]:
    """Return the lengths of an example, which is scored at every position of its target."""
    target = fitting_shape(objective.sequence_length, objective.span_corruption).target_length
    return objective.sequence_length, target, target
