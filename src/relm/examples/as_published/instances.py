"""Instances with static masks: as objects, as packed rows of integers, and as the columns of a table."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from relm.examples.columns import Column
from relm.examples.storage import dtype_of

Rows = npt.NDArray[np.int32]

# Values before the tokens of a row: length, second_start, next_sentence_label, masked_count.
HEAD = 4
# Instances that are packed at once: some MB of objects.
BLOCK = 1024
# The label of a row that is not a pair.
NO_PAIR = -1
# All originals pad with zeros, whichever token has that id.
PADDING = 0


class Instance(NamedTuple):
    """One sequence with some of its tokens masked."""

    tokens: list[int]
    """The tokens, special ones included, masked ones replaced."""
    second_start: int
    """The position at which segment 1 begins; the count of tokens if all are of segment 0."""
    is_random: bool
    """True if the second segment does not follow the first in the text."""
    positions: list[int]
    """The positions of the masked tokens, ascending."""
    labels: list[int]
    """The original tokens at these positions."""


def row_width(sequence_length: int, predictions: int) -> int:
    """Return the count of values in a packed row."""
    return HEAD + sequence_length + 2 * predictions


def pack_instances(instances: Sequence[Instance], sequence_length: int, predictions: int, pairs: bool) -> Rows:
    """Return instances as rows of `row_width`: head, tokens, positions, labels; padded with 0.

    With `pairs`, `is_random` is the label of a pair; else rows have none.
    """
    rows = np.full((len(instances), row_width(sequence_length, predictions)), PADDING, dtype=np.int32)
    positions_at = HEAD + sequence_length
    for row, instance in zip(rows, instances, strict=True):
        length, count = len(instance.tokens), len(instance.positions)
        row[:HEAD] = length, instance.second_start, instance.is_random if pairs else NO_PAIR, count
        row[HEAD : HEAD + length] = instance.tokens
        row[positions_at : positions_at + count] = instance.positions
        row[positions_at + predictions : positions_at + predictions + count] = instance.labels
    return rows


Item = TypeVar("Item")


def batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of `BLOCK`."""
    waiting = iter(items)
    while block := list(islice(waiting, BLOCK)):
        yield block


def split_columns(rows: Rows, sequence_length: int, predictions: int) -> dict[str, npt.NDArray[np.int32]]:
    """Return packed rows as the columns of a table, which are views."""
    positions_at = HEAD + sequence_length
    return {
        "input_ids": rows[:, HEAD:positions_at],
        "length": rows[:, 0],
        "second_start": rows[:, 1],
        "next_sentence_label": rows[:, 2],
        "masked_positions": rows[:, positions_at : positions_at + predictions],
        "masked_labels": rows[:, positions_at + predictions :],
        "masked_count": rows[:, 3],
    }


def table_columns(sequence_length: int, predictions: int, vocabulary_size: int) -> list[Column]:
    """Return the columns of a table of masked examples with static masks."""
    kind = dtype_of(vocabulary_size)
    return [
        Column("input_ids", kind, sequence_length, vocabulary_size),
        Column("length", "uint16"),
        Column("second_start", "uint16"),
        Column("next_sentence_label", "int8"),
        Column("masked_positions", "uint16", predictions),
        Column("masked_labels", kind, predictions, vocabulary_size),
        Column("masked_count", "uint16"),
    ]
