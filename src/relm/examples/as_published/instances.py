"""Instances with static masks: as objects while they are made, as rows of numbers while they wait, as columns in a table."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.examples.columns import Column
from relm.examples.storage import dtype_of

Rows = npt.NDArray[np.int32]

# Before the tokens of a row: length, second_start, next_sentence_label, masked_count.
HEAD = 4
# Instances that are packed at once: some MB of objects.
BLOCK = 1024
# The label of a row that is no pair.
NO_PAIR = -1
# All originals fill up with zeros, whatever token has that id.
PADDING = 0


class Instance(NamedTuple):
    """One sequence with some of its tokens hidden."""

    tokens: list[int]
    """With special tokens; hidden ones replaced."""
    second_start: int
    """Where segment 1 begins; the number of tokens, if all are of segment 0."""
    is_random: bool
    """The second segment does not follow the first in the text."""
    positions: list[int]
    """Of the hidden tokens, ascending."""
    labels: list[int]
    """The hidden tokens."""


def row_width(sequence_length: int, predictions: int) -> int:
    """Numbers in a packed row."""
    return HEAD + sequence_length + 2 * predictions


def packed(instances: Sequence[Instance], sequence_length: int, predictions: int, pairs: bool) -> Rows:
    """Instances as rows of equal width: head, tokens, positions, labels; filled up with 0.

    Args:
        pairs: `is_random` is the label of a pair; else rows have none.

    Returns:
        (instances, `row_width`).
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


def blocks_of(instances: Iterable[Instance]) -> Iterator[list[Instance]]:
    """Instances, some at a time."""
    waiting = iter(instances)
    while block := list(islice(waiting, BLOCK)):
        yield block


def columns_of(rows: Rows, sequence_length: int, predictions: int) -> dict[str, npt.NDArray[np.int32]]:
    """Packed rows as the columns of a table; views."""
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
    kind: Any = dtype_of(vocabulary_size)
    return [
        Column("input_ids", kind, sequence_length, vocabulary_size),
        Column("length", "uint16"),
        Column("second_start", "uint16"),
        Column("next_sentence_label", "int8"),
        Column("masked_positions", "uint16", predictions),
        Column("masked_labels", kind, predictions, vocabulary_size),
        Column("masked_count", "uint16"),
    ]
