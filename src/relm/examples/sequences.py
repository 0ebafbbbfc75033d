"""Packed sequences as rows of token ids: `[CLS] text [SEP]` or `[CLS] first [SEP] second [SEP]`, padded at the end."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.examples.packing import Packing, Sequences

Array = npt.NDArray[Any]


class SequenceRows(NamedTuple):
    """Sequences of one length L, as the columns of a masked table."""

    input_ids: npt.NDArray[np.integer]
    """(rows, L), in the type of the tokens."""
    length: npt.NDArray[np.uint16]
    """(rows,), length without padding."""
    second_start: npt.NDArray[np.uint16]
    """(rows,), start of the second segment; the length if there is none."""
    next_sentence_label: npt.NDArray[np.int8]
    """(rows,), label as in `packing.Sequences`."""
    word_starts: npt.NDArray[np.bool_]
    """(rows, L), True at the first token of each word, also a truncated one, and at special tokens; False at padding."""


class Specials(NamedTuple):
    """The ids of the special tokens in sequences."""

    cls: int
    sep: int
    pad: int


def rows_of(
    tokens: npt.NDArray[np.integer],
    word_starts: npt.NDArray[np.bool_],
    sequences: Sequences,
    packing: Packing,
    special: Specials,
) -> SequenceRows:
    """Return consecutive sequences as rows.

    `tokens`, (n,), are those of all documents and may be memory-mapped; `word_starts`, (n,), is True for tokens that begin a
    word.
    """
    length, paired = packing.sequence_length, packing.is_paired
    first_start, first_stop, second_start, second_stop, label = sequences[:5]
    if not paired:
        tokens, word_starts, first_start, first_stop = insert_separators(tokens, word_starts, sequences, special.sep)
    columns = np.arange(length)
    first_end = first_stop - first_start + 1  # the column of the separator after the first segment
    sizes = first_end + 1 + (second_stop - second_start + 1 if paired else 0)
    offsets = (first_start - 1)[:, None] + columns
    if paired:
        np.copyto(offsets, (second_start - first_end - 1)[:, None] + columns, where=columns > first_end[:, None])
    padding = columns >= sizes[:, None]
    # Offsets outside the text belong to special tokens and padding, which are written below.
    ids, starts = tokens.take(offsets, mode="clip"), word_starts.take(offsets, mode="clip")
    np.copyto(ids, ids.dtype.type(special.pad), where=padding)
    np.copyto(starts, False, where=padding)
    numbers = np.arange(len(label))
    ids[:, 0] = special.cls
    ids[numbers, first_end] = ids[numbers, sizes - 1] = special.sep
    starts[:, :2] = starts[numbers, first_end] = starts[numbers, sizes - 1] = True
    if paired:
        starts[numbers, first_end + 1] = True
    second = first_end + 1 if paired else sizes
    return SequenceRows(ids, sizes.astype(np.uint16), second.astype(np.uint16), label, starts)


def insert_separators(
    tokens: npt.NDArray[np.integer], word_starts: npt.NDArray[np.bool_], sequences: Sequences, separator: int
) -> tuple[Array, Array, Array, Array]:
    """Return the tokens of consecutive sequences, with separators inserted between documents.

    The result is tokens, word starts, and the starts and stops of the sequences in these.
    """
    begin, end = int(sequences.first_start[0]), int(sequences.first_stop[-1])
    between = sequences.separators[(sequences.separators > begin) & (sequences.separators < end)]
    # A separator comes before its document; a sequence that begins or ends there does not include it.
    starts = sequences.first_start - begin + np.searchsorted(between, sequences.first_start, "right")
    stops = sequences.first_stop - begin + np.searchsorted(between, sequences.first_stop, "left")
    offsets = between - begin
    return (
        np.insert(np.asarray(tokens[begin:end]), offsets, separator),
        np.insert(np.asarray(word_starts[begin:end]), offsets, True),
        starts,
        stops,
    )
