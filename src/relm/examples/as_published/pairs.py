"""What two originals share with Google's BERT: how a document becomes pairs of segments, and how tokens are hidden.

Both allenai's tpu_pretrain and Graphcore's BERT changed Google's create_pretraining_data.py, each in its own way. What they
left alone is here, on token ids: a segment is a span of the array of all tokens, so sentences are joined, and cut from either
end, without copying a token. Every random number is drawn from Python's generator in the originals' order, so the same seed
gives the same instances; that rules out drawing them in bulk.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# [CLS] and two [SEP]: what the originals leave room for, even where they use one less.
SPECIAL_TOKENS = 3
# The shortest sequence for which the original can draw a short length: randint(2, sequence_length - 3).
SHORTEST = SPECIAL_TOKENS + 2


class Corpus(NamedTuple):
    """All documents, as `relm.examples.tokenized.TokenizedDocuments` has them."""

    tokens: npt.NDArray[np.integer]
    """(n,) token ids."""
    sentence_starts: npt.NDArray[np.int64]
    """(sentences + 1,), where in `tokens` each sentence begins, and their end."""
    document_starts: npt.NDArray[np.int64]
    """(documents + 1,), where in `sentence_starts` each document begins, and their end."""

    @property
    def documents(self) -> int:
        """How many."""
        return len(self.document_starts) - 1

    def between(self, start: int, stop: int) -> list[int]:
        """Token ids of a span."""
        found: list[int] = self.tokens[start:stop].tolist()
        return found


class Pair(NamedTuple):
    """Two segments as half-open spans of a corpus's tokens; the second may be empty."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int
    is_random: bool
    """The second segment does not follow the first in the text."""


class Rule(NamedTuple):
    """Where the originals differ in how they make pairs."""

    sequence_length: int
    short_sequence_probability: float
    random_second: bool
    """Of several sentences, the second segment is taken from elsewhere half of the time."""
    second_joins_first: bool
    """A second segment that does follow is appended to the first, and the second stays empty."""
    other_document: Callable[[int, random.Random], int]
    """Draws the document that random segments come from, given the one at hand."""


def pairs_of(corpus: Corpus, document: int, rule: Rule, draws: random.Random) -> Iterator[Pair]:
    """Yield the pairs of one document, in order; numbers are drawn as each is asked for, so that a caller may draw in between.

    Sentences are gathered until they fill a target length, which is mostly the whole sequence, and divided at a random place.
    Where the second segment comes from elsewhere, the sentences behind that place are used again.
    """
    first, last = corpus.document_starts[document : document + 2].tolist()
    starts: list[int] = corpus.sentence_starts[first : last + 1].tolist()
    room = target = rule.sequence_length - SPECIAL_TOKENS
    if draws.random() < rule.short_sequence_probability:
        target = draws.randint(2, room)
    begin = place = 0
    while place < last - first:
        if place == last - first - 1 or starts[place + 1] - starts[begin] >= target:
            sentences = place + 1 - begin
            divide = draws.randrange(1, sentences) if sentences >= 2 else 1
            start, middle, stop = starts[begin], starts[begin + divide], starts[place + 1]
            if sentences == 1 or (rule.random_second and draws.random() < 0.5):
                pair = Pair(start, middle, *_elsewhere(corpus, document, target - (middle - start), rule, draws), True)
                place -= sentences - divide
            elif rule.second_joins_first:
                pair = Pair(start, stop, stop, stop, False)
            else:
                pair = Pair(start, middle, middle, stop, False)
            yield truncated(pair, room, draws)
            begin = place + 1
        place += 1


def _elsewhere(corpus: Corpus, document: int, wanted: int, rule: Rule, draws: random.Random) -> tuple[int, int]:
    """Return the span of whole sentences, at least one, with `wanted` tokens or more from a random sentence of another document on."""
    other = rule.other_document(document, draws)
    first, stop = corpus.document_starts[other : other + 2].tolist()
    begin = first + draws.randrange(0, stop - first)
    start = int(corpus.sentence_starts[begin])
    end = bisect_left(corpus.sentence_starts, start + wanted, begin + 1, stop)
    return start, int(corpus.sentence_starts[end])


def truncated(pair: Pair, room: int, draws: random.Random) -> Pair:
    """Return the pair cut to `room` tokens, one by one: from the longer segment (the second, if equal), at either end by chance.

    >>> truncated(Pair(0, 6, 10, 12, False), 6, random.Random(0))
    Pair(a_start=0, a_stop=4, b_start=10, b_stop=12, is_random=False)
    """
    a_start, a_stop, b_start, b_stop, is_random = pair
    while (a_stop - a_start) + (b_stop - b_start) > room:
        from_a, at_front = a_stop - a_start > b_stop - b_start, draws.random() < 0.5
        if from_a:
            a_start, a_stop = a_start + at_front, a_stop - (not at_front)
        else:
            b_start, b_stop = b_start + at_front, b_stop - (not at_front)
    return Pair(a_start, a_stop, b_start, b_stop, is_random)


def hidden(
    tokens: list[int], candidates: list[list[int]], count: int, mask: int, vocabulary_size: int, draws: random.Random
) -> tuple[list[int], list[int]]:
    """Hide `count` tokens at most, in place: four of five become `mask`, of the rest half stay and half become random ones.

    Args:
        candidates: the places that are hidden together, or not at all; they are shuffled.
        vocabulary_size: random tokens are 0 to one less.

    Returns:
        The places, ascending, and the tokens that stood there.
    """
    draws.shuffle(candidates)
    labels: dict[int, int] = {}
    for places in candidates:
        if len(labels) >= count:
            break
        if len(labels) + len(places) > count:
            continue
        for place in places:
            labels[place] = tokens[place]
            if draws.random() < 0.8:
                tokens[place] = mask
            elif draws.random() >= 0.5:
                tokens[place] = draws.randrange(vocabulary_size)
    ascending = sorted(labels)
    return ascending, [labels[place] for place in ascending]
