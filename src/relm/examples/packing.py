"""Which sentences make up which sequence: arithmetic on where sentences and documents begin, no token is read.

Three packings, named as in section 4.2 of RoBERTa (Liu et al. 2019, arXiv 1907.11692). `full_sentences` and
`document_sentences` fill a sequence with as many whole sentences as fit; a sentence longer than a sequence is cut into pieces
that fill one each and a rest, so no token is lost. `sentence_pairs` is BERT's (Devlin et al. 2019, arXiv 1810.04805, appendix
A.2): sentences until the sequence is full or the document ends; of these the first ones are the first segment, a random number
of them. In half of the sequences the rest is the second segment; in the others, and where there is no rest, the second comes
from another document and the rest begins the next sequence. What is too long is truncated at either end: this is what pairs
lose. A sentence longer than a pair is cut into pieces of half a pair, so that it gives pairs as other text does.

Where a sequence that begins at a sentence would end is computed for all sentences at once; then the beginnings that do occur
are found by following that from one to the next. Every draw belongs to (seed, repetition, where the sequence begins).
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

# Sentences that are looked at together, besides those of two sequences; as many as the cache holds arrays of.
WINDOW = 2**15
# Numbers of the draws for one beginning.
IS_SHORT, SHORT_LENGTH, FIRST_SENTENCES, IS_RANDOM, RANDOM_SENTENCE, FIRST_CUT, SECOND_CUT = range(7)
FOLLOWS, RANDOM, NO_PAIR = 0, 1, -1


class Text(NamedTuple):
    """Where sentences and documents begin; arrays may be memory-mapped."""

    sentence_starts: Integers
    """(sentences + 1,), tokens before each sentence, and all tokens."""
    document_starts: Integers
    """(documents + 1,), sentences before each document, and all sentences."""


class Packing(NamedTuple):
    """How sequences are made."""

    options: Masked
    sequence_length: int
    source: str
    """What is packed, such as its sha256: other sources get other draws from the same seed."""
    repetition: int = 0
    """Which of the `duplication_factor` passes over all documents."""

    @property
    def is_paired(self) -> bool:
        """Whether sequences have two segments."""
        return self.options.packing == "sentence_pairs"

    @property
    def room(self) -> int:
        """Tokens of text that fit into a sequence: all but [CLS] and [SEP], in pairs another [SEP]."""
        return self.sequence_length - (3 if self.is_paired else 2)


class Sequences(NamedTuple):
    """Consecutive sequences: the tokens of each, as offsets into all tokens."""

    first_start: Integers
    first_stop: Integers
    second_start: Integers
    """Without a second segment, where the first one stops."""
    second_stop: Integers
    label: npt.NDArray[np.int8]
    """0: the second segment follows the first; 1: it is random; -1: there is none."""
    separators: Integers
    """(any number,), ascending: where a document begins that shares a sequence with the one before; a separator goes there."""
    truncated: int
    """Tokens that pairs left out."""

    def between(self, start: int, stop: int) -> "Sequences":
        """Some of the sequences; separators stay, truncated tokens are counted once, for all."""
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
    """Some consecutive sentences, long ones cut into pieces; pieces are counted from the first."""

    starts: Integers
    """(pieces + 1,), offsets of tokens."""
    document: Integers
    """(pieces,), which of the window's documents a piece is of."""
    document_stops: Integers
    """(documents,), the piece after a document's last, or after the window's."""
    first_document: int
    """How many documents lie before."""
    beginnings: int
    """How many pieces have all that a sequence can reach inside the window."""


class PackingPlan(NamedTuple):
    """The sequence that begins at each piece of a window, and where the next one would; all are counts of pieces."""

    first_stops: Integers
    stops: Integers
    """After the second segment, if it follows the first."""
    label: npt.NDArray[np.int8]
    nexts: Integers


def packed(text: Text, packing: Packing) -> Iterator[Sequences]:
    """All sequences of a text, some at a time, in the text's order.

    Raises:
        RelmError: the sequence is too short for its special tokens, or pairs are wanted of a single document.
    """
    require_room(packing)
    if packing.is_paired and len(text.document_starts) == 2:
        raise RelmError(
            "masked.packing: sentence_pairs takes random second segments from other documents, but there is only one; "
            "give each file two documents or more, or use full_sentences or document_sentences"
        )
    text = Text(np.asarray(text.sentence_starts), np.asarray(text.document_starts))  # views without a memory-map's overhead
    begin, end = 0, int(text.sentence_starts[-1]) if len(text.sentence_starts) else 0
    while begin < end:
        window = window_from(text, begin, packing)
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
    """
    Raises:
        RelmError: a sequence has no place for text beside its special tokens.
    """
    shortest = 5 if packing.is_paired else 3
    if packing.sequence_length < shortest:
        raise RelmError(
            f"sequence_length: {packing.sequence_length} leaves no room for text beside the special tokens of "
            f"{packing.options.packing}; it must be {shortest} at least"
        )


def window_from(text: Text, begin: int, packing: Packing) -> Window:
    """The sentences from the one that has token `begin` on, cut into pieces; `begin` is where a piece begins."""
    sentences = len(text.sentence_starts) - 1
    first = int(np.searchsorted(text.sentence_starts, begin, "right")) - 1
    last = min(sentences, first + WINDOW + 2 * packing.sequence_length)
    starts = with_cuts(
        np.array(text.sentence_starts[first : last + 1]), packing.room, packing.room // 2 if packing.is_paired else packing.room
    )
    starts = starts[np.searchsorted(starts, begin) :]
    documents = np.searchsorted(text.document_starts, [first, last - 1], "right") - 1
    after = np.minimum(text.document_starts[documents[0] + 1 : documents[1] + 2], last)
    document_stops = np.searchsorted(starts, text.sentence_starts[after])
    # A sequence is full before a sentence would exceed it; a pair, whose target may be reached by a long sentence, after it.
    reach = starts[-1] - 2 * packing.room
    return Window(
        starts,
        np.repeat(np.arange(len(after)), np.diff(document_stops, prepend=0)),
        document_stops,
        int(documents[0]),
        len(starts) - 1 if last == sentences else int(np.searchsorted(starts, reach, "right")),
    )


def with_cuts(starts: Integers, longest: int, piece: int) -> Integers:
    """Where sentences begin, and where the pieces of those begin that are longer than `longest`.

    >>> with_cuts(np.array([0, 3, 14, 16]), 5, 4)
    array([ 0,  3,  7, 11, 14, 16])
    """
    sizes = np.diff(starts)
    pieces = np.where(sizes > longest, -(-sizes // piece), 1)
    if len(sizes) == 0 or pieces.max() == 1:
        return starts
    places = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.append(np.repeat(starts[:-1], pieces) + piece * places, starts[-1])


def _targets(packing: Packing, keys: Draws) -> Integers:
    """How many tokens of text a sequence that begins at each piece should have."""
    room, probability = packing.room, packing.options.short_sequence_probability
    if probability == 0:
        return np.full(len(keys), room)
    shortest = min(2, room)
    short = shortest + below(drawn(keys, SHORT_LENGTH), room - shortest + 1)
    return np.where(happens(drawn(keys, IS_SHORT), probability), short, room)


def _runs(window: Window, packing: Packing, keys: Draws) -> PackingPlan:
    """As many whole pieces as fit, one at least; with `full_sentences` documents follow each other, a separator between."""
    count = window.beginnings
    starts, stops, document_stops = window.starts[:-1], window.starts[1:], window.document_stops[window.document[:count]]
    if packing.options.packing == "full_sentences":
        # Each separator before a piece moves it along by one.
        starts, stops, document_stops = starts + window.document, stops + window.document, np.array([len(starts)])
    found = np.searchsorted(stops, starts[:count] + _targets(packing, keys), "right")
    ends = np.clip(found, np.arange(1, count + 1), document_stops)
    return PackingPlan(ends, ends, np.full(count, NO_PAIR, np.int8), ends)


def _pairs(window: Window, packing: Packing, keys: Draws) -> PackingPlan:
    """Pieces until the target is reached or the document ends; a random number of them is the first segment."""
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
    """The beginnings that occur, from 0 on, and the first that lies beyond the list."""
    chosen, place, count = [], 0, len(nexts)
    while place < count:
        chosen.append(place)
        place = nexts[place]
    return np.array(chosen), place


def _sequences(text: Text, window: Window, packing: Packing, keys: Draws, plan: PackingPlan, chosen: Integers) -> Sequences:
    """The sequences that begin at the chosen pieces."""
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
    """From a sentence of another document, all being equally likely, until enough is there or that document ends.

    Args:
        document: (rows,), which one it must not be.
        wanted: (rows,), tokens; one sentence is taken at least.
    """
    sentence_starts, document_starts = text
    begins, ends = document_starts[document], document_starts[document + 1]
    sentence = below(drawn(keys, RANDOM_SENTENCE), document_starts[-1] - (ends - begins))
    sentence += np.where(sentence >= begins, ends - begins, 0)
    start = sentence_starts[sentence]
    document_stop = document_starts[np.searchsorted(document_starts, sentence, "right")]
    most = np.minimum(document_stop, sentence + np.maximum(wanted, 1))  # a sentence has a token at least
    stop = _first_reaching(sentence_starts, sentence + 1, most, start + wanted)
    return start, np.minimum(sentence_starts[stop], start + room)


def _first_reaching(values: Integers, low: Integers, high: Integers, wanted: Integers) -> Integers:
    """The least place from `low` on whose value is no less than what is wanted there, at most `high`; `values` ascend.

    Places lie near each other, so that this reads less of a memory-mapped array than a search in all of it.
    """
    while (low < high).any():
        middle = (low + high) // 2
        enough = values[middle] >= wanted
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return low


def truncated(first: Integers, second: Integers, room: int) -> tuple[Integers, Integers]:
    """The sizes of two segments after tokens were taken from the longer, of equal ones from the second, until both fit.

    >>> truncated(np.array([3, 9, 2, 9]), np.array([3, 2, 9, 9]), 7)
    (array([3, 5, 2, 4]), array([3, 2, 5, 3]))
    """
    half = room // 2
    over = first + second > room
    second_kept = np.where(second <= half, second, np.maximum(half, room - first))
    second_kept = np.where(over, second_kept, second)
    return np.where(over, room - second_kept, first), second_kept
