"""Pack sentences into sequences: pure functions on the offsets of sentences and documents, without the tokens.

Three packings, named as in section 4.2 of RoBERTa (Liu et al. 2019, arXiv 1907.11692). `full_sentences` and
`document_sentences` fill a sequence with as many whole sentences as fit; a sentence longer than a sequence is split into pieces
that fill one each and a rest, so no token is lost. `sentence_pairs` is BERT's (Devlin et al. 2019, arXiv 1810.04805, appendix
A.2): it takes sentences until the sequence is full or the document ends; a random number of the first ones is the first
segment. In half of the sequences the rest is the second segment; in the others, and where nothing is left, the second comes
from another document and the rest begins the next sequence. Pairs that are too long are truncated at either end, which loses
tokens. A sentence longer than a pair is split into pieces of half a pair, so that it gives pairs as other text does.

First the end of a sequence that would begin at a sentence is computed for all sentences at once; then following these ends from
one to the next finds the actual beginnings. Every draw follows from (seed, repetition, offset of the sequence).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.draws import Draws, below, drawn, happens
from relm.examples.order import row_keys
from relm.recipes.objectives import Masked

Integers = npt.NDArray[np.int64]

# Sentences that are packed together, besides those of two sequences; their arrays fit into the cache.
WINDOW = 2**15
# Indices of the draws for one beginning.
IS_SHORT, SHORT_LENGTH, FIRST_SENTENCES, IS_RANDOM, RANDOM_SENTENCE, FIRST_CUT, SECOND_CUT = range(7)
FOLLOWS, RANDOM, NO_PAIR = 0, 1, -1


class Text(NamedTuple):
    """The starts of sentences and documents; arrays may be memory-mapped."""

    sentence_starts: Integers
    """(sentences + 1,), count of tokens before each sentence, and of all tokens."""
    document_starts: Integers
    """(documents + 1,), count of sentences before each document, and of all sentences."""


class Packing(NamedTuple):
    """The options of packing."""

    options: Masked
    sequence_length: int
    source: str
    """Name of the text, such as its sha256; with the same seed another source gets other draws."""
    repetition: int = 0
    """Index of the pass over all documents, below `duplication_factor`."""

    @property
    def is_paired(self) -> bool:
        """Return True if sequences have two segments."""
        return self.options.packing == "sentence_pairs"

    @property
    def room(self) -> int:
        """Return how many tokens of text fit into a sequence, apart from [CLS] and [SEP], in pairs two [SEP]."""
        return self.sequence_length - (3 if self.is_paired else 2)


class Sequences(NamedTuple):
    """Consecutive sequences, as offsets into all tokens."""

    first_start: Integers
    first_stop: Integers
    second_start: Integers
    """Start of the second segment; without one, the stop of the first."""
    second_stop: Integers
    label: npt.NDArray[np.int8]
    """0: the second segment follows the first; 1: it is random; -1: no second segment."""
    separators: Integers
    """Ascending starts of documents that share a sequence with the one before; a separator goes there."""
    truncated: int
    """Number of tokens that pairs lost."""

    def between(self, start: int, stop: int) -> "Sequences":
        """Return some of the sequences with all separators; truncated tokens are 0, since they are counted once for all."""
        return Sequences(
            self.first_start[start:stop],
            self.first_stop[start:stop],
            self.second_start[start:stop],
            self.second_stop[start:stop],
            self.label[start:stop],
            self.separators,
            0,
        )


class Window(NamedTuple):
    """Some consecutive sentences, long ones split into pieces, which are counted from the first."""

    starts: Integers
    """(pieces + 1,), offsets of tokens."""
    document: Integers
    """(pieces,), index of a piece's document in the window."""
    document_stops: Integers
    """(documents,), the piece after a document's last, or after the window's."""
    first_document: int
    """Number of documents before the window."""
    beginnings: int
    """Number of pieces, from the first, whose sequences are sure to end inside the window."""


class PackingPlan(NamedTuple):
    """The sequence that begins at each piece of a window, and the start of the next one; all are indices of pieces."""

    first_stops: Integers
    stops: Integers
    """Stop of the second segment, if it follows the first."""
    label: npt.NDArray[np.int8]
    nexts: Integers


def packed(text: Text, packing: Packing) -> Iterator[Sequences]:
    """Yield the sequences of a text, some at a time, in the text's order."""
    require_room(packing)
    if packing.is_paired and len(text.document_starts) == 2:
        raise RelmError(
            "masked.packing: sentence_pairs takes random second segments from other documents, but found one document; "
            "give each file at least two, or use full_sentences or document_sentences"
        )
    text = Text(np.asarray(text.sentence_starts), np.asarray(text.document_starts))  # views without a memory-map's overhead
    begin, end = 0, int(text.sentence_starts[-1]) if len(text.sentence_starts) else 0
    while begin < end:
        window = read_window(text, begin, packing)
        keys = row_keys(
            f"packing of {packing.source}",
            packing.options.seed,
            np.array([packing.repetition]),
            window.starts[: window.beginnings],
        )
        plan = (_pairs if packing.is_paired else _runs)(window, packing, keys)
        chosen, after = _chain(plan.nexts.tolist())
        yield _sequences(text, window, packing, keys, plan, chosen)
        begin = int(window.starts[after])


def require_room(packing: Packing) -> None:
    """Raise RelmError unless sequences have room for text."""
    shortest = 5 if packing.is_paired else 3
    if packing.sequence_length < shortest:
        raise RelmError(
            f"sequence_length: {packing.sequence_length} leaves no room for text with {packing.options.packing}; set at least "
            f"{shortest}"
        )


def read_window(text: Text, begin: int, packing: Packing) -> Window:
    """Return the sentences from the one with token `begin` on, split into pieces, one of which begins at `begin`."""
    sentences = len(text.sentence_starts) - 1
    first = int(np.searchsorted(text.sentence_starts, begin, "right")) - 1
    last = min(sentences, first + WINDOW + 2 * packing.sequence_length)
    starts = cut_sentences(
        np.array(text.sentence_starts[first : last + 1]), packing.room, packing.room // 2 if packing.is_paired else packing.room
    )
    starts = starts[np.searchsorted(starts, begin) :]
    documents = np.searchsorted(text.document_starts, [first, last - 1], "right") - 1
    after = np.minimum(text.document_starts[documents[0] + 1 : documents[1] + 2], last)
    document_stops = np.searchsorted(starts, text.sentence_starts[after])
    # A sequence ends before a sentence that would exceed it; a pair ends after the sentence that reaches its target.
    reach = starts[-1] - 2 * packing.room
    return Window(
        starts,
        np.repeat(np.arange(len(after)), np.diff(document_stops, prepend=0)),
        document_stops,
        int(documents[0]),
        len(starts) - 1 if last == sentences else int(np.searchsorted(starts, reach, "right")),
    )


def cut_sentences(starts: Integers, longest: int, piece: int) -> Integers:
    """Return the starts of sentences, and of the pieces of those longer than `longest`.

    >>> cut_sentences(np.array([0, 3, 14, 16]), 5, 4)
    array([ 0,  3,  7, 11, 14, 16])
    """
    sizes = np.diff(starts)
    pieces = np.where(sizes > longest, -(-sizes // piece), 1)
    if len(sizes) == 0 or pieces.max() == 1:
        return starts
    numbers = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.append(np.repeat(starts[:-1], pieces) + piece * numbers, starts[-1])


def _targets(packing: Packing, keys: Draws) -> Integers:
    """Return how many text tokens a sequence that begins at each piece should have."""
    room, probability = packing.room, packing.options.short_sequence_probability
    if probability == 0:
        return np.full(len(keys), room)
    shortest = min(2, room)
    short = shortest + below(drawn(keys, SHORT_LENGTH), room - shortest + 1)
    return np.where(happens(drawn(keys, IS_SHORT), probability), short, room)


def _runs(window: Window, packing: Packing, keys: Draws) -> PackingPlan:
    """Return sequences of as many whole pieces as fit, at least one; `full_sentences` puts a separator between documents."""
    count = window.beginnings
    starts, stops, document_stops = window.starts[:-1], window.starts[1:], window.document_stops[window.document[:count]]
    if packing.options.packing == "full_sentences":
        # Each separator before a piece shifts it by one.
        starts, stops, document_stops = starts + window.document, stops + window.document, np.array([len(starts)])
    found = np.searchsorted(stops, starts[:count] + _targets(packing, keys), "right")
    ends = np.clip(found, np.arange(1, count + 1), document_stops)
    return PackingPlan(ends, ends, np.full(count, NO_PAIR, np.int8), ends)


def _pairs(window: Window, packing: Packing, keys: Draws) -> PackingPlan:
    """Return pairs of pieces up to the target or the document's end; a random number of them is the first segment."""
    count = window.beginnings
    pieces = np.arange(count)
    reached = np.searchsorted(window.starts, window.starts[:count] + _targets(packing, keys))
    stops = np.minimum(reached, window.document_stops[window.document[:count]])
    sizes = stops - pieces
    first_stops = pieces + 1 + below(drawn(keys, FIRST_SENTENCES), np.maximum(sizes - 1, 1))
    is_random = (sizes == 1) | happens(drawn(keys, IS_RANDOM), 0.5)
    label = np.where(is_random, np.int8(RANDOM), np.int8(FOLLOWS))
    return PackingPlan(first_stops, stops, label, np.where(is_random, first_stops, stops))


def _chain(nexts: list[int]) -> tuple[Integers, int]:
    """Return the actual beginnings, from 0 on, and the first one beyond the list."""
    # Each beginning follows from the one before, so this loop cannot work on arrays; it runs once for each sequence.
    chosen, piece, count = [], 0, len(nexts)
    while piece < count:
        chosen.append(piece)
        piece = nexts[piece]
    return np.array(chosen), piece


def _sequences(text: Text, window: Window, packing: Packing, keys: Draws, plan: PackingPlan, chosen: Integers) -> Sequences:
    """Return the sequences that begin at the chosen pieces."""
    starts, label, keys = window.starts, plan.label[chosen], keys[chosen]
    first_start, first_stop = starts[chosen], starts[plan.first_stops[chosen]]
    if not packing.is_paired:
        separators = starts[window.document_stops] if packing.options.packing == "full_sentences" else starts[:0]
        return Sequences(first_start, first_stop, first_stop, first_stop, label, separators, 0)
    second_start, second_stop = first_stop.copy(), starts[plan.stops[chosen]]
    rows = np.flatnonzero(label == RANDOM)
    document = window.first_document + window.document[chosen[rows]]
    wanted = _targets(packing, keys[rows]) - (first_stop - first_start)[rows]
    second_start[rows], second_stop[rows] = _random_seconds(text, document, wanted, packing.room, keys[rows])
    kept = truncated(first_stop - first_start, second_stop - second_start, packing.room)
    lost = [first_stop - first_start - kept[0], second_stop - second_start - kept[1]]
    first_start = first_start + below(drawn(keys, FIRST_CUT), lost[0] + 1)
    second_start = second_start + below(drawn(keys, SECOND_CUT), lost[1] + 1)
    truncated_tokens = int(lost[0].sum() + lost[1][label == FOLLOWS].sum())
    return Sequences(
        first_start, first_start + kept[0], second_start, second_start + kept[1], label, starts[:0], truncated_tokens
    )


def _random_seconds(text: Text, document: Integers, wanted: Integers, room: int, keys: Draws) -> tuple[Integers, Integers]:
    """Return segments that start at a uniformly drawn sentence of another document and end when long enough or with it.

    `document` is the one to exclude, `wanted` the number of tokens, both (rows,); a segment has at least one sentence.
    """
    sentence_starts, document_starts = text
    begins, ends = document_starts[document], document_starts[document + 1]
    sentence = below(drawn(keys, RANDOM_SENTENCE), document_starts[-1] - (ends - begins))
    sentence += np.where(sentence >= begins, ends - begins, 0)
    start = sentence_starts[sentence]
    document_stop = document_starts[np.searchsorted(document_starts, sentence, "right")]
    most = np.minimum(document_stop, sentence + np.maximum(wanted, 1))  # a sentence has at least one token
    stop = _first_reaching(sentence_starts, sentence + 1, most, start + wanted)
    return start, np.minimum(sentence_starts[stop], start + room)


def _first_reaching(values: Integers, low: Integers, high: Integers, wanted: Integers) -> Integers:
    """Return the least index in `low` to `high` whose value is at least the wanted one; `values` ascend.

    The bounds are close, so this reads less of a memory-mapped array than a search in all of it.
    """
    while (low < high).any():
        middle = (low + high) // 2
        enough = values[middle] >= wanted
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return low


def truncated(first: Integers, second: Integers, room: int) -> tuple[Integers, Integers]:
    """Return the sizes of two segments after removing tokens from the longer one, of equal ones the second, until both fit.

    >>> truncated(np.array([3, 9, 2, 9]), np.array([3, 2, 9, 9]), 7)
    (array([3, 5, 2, 4]), array([3, 2, 5, 3]))
    """
    half = room // 2
    over = first + second > room
    second_kept = np.where(second <= half, second, np.maximum(half, room - first))
    second_kept = np.where(over, second_kept, second)
    return np.where(over, room - second_kept, first), second_kept
