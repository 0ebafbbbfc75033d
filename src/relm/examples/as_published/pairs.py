"""Code that two originals share with Google's BERT: a document becomes pairs of segments, and tokens are masked.

Both allenai's tpu_pretrain and Graphcore's BERT changed Google's create_pretraining_data.py, each in its own way. The part
left unchanged is here, on token ids: a segment is a span of the array of all tokens, so sentences are concatenated, and cut
from either end, without copying a token. Every random number is drawn from Python's generator in the originals' order, so the
same seed gives the same instances; that rules out drawing them in bulk.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# [CLS] and two [SEP]: the originals reserve positions for three, even where they use one less.
SPECIAL_TOKENS = 3
# The shortest sequence for which the original can draw a short length: randint(2, sequence_length - 3).
SHORTEST = SPECIAL_TOKENS + 2


class Corpus(NamedTuple):
    """All documents, as `relm.examples.tokenized.TokenizedDocuments` has them."""

    tokens: npt.NDArray[np.integer]
    """(n,) token ids."""
    sentence_starts: npt.NDArray[np.int64]
    """(sentences + 1,), the offset in `tokens` at which each sentence begins, and their end."""
    document_starts: npt.NDArray[np.int64]
    """(documents + 1,), the index into `sentence_starts` at which each document begins, and their end."""
    word_starts: npt.NDArray[np.bool_] | None = None
    """(n,), True for a token that begins a word; None: the original does not ask."""

    @property
    def documents(self) -> int:
        """The count of documents."""
        return len(self.document_starts) - 1

    def between(self, start: int, stop: int) -> list[int]:
        """Return the token ids of a span."""
        found: list[int] = self.tokens[start:stop].tolist()
        return found


class Pair(NamedTuple):
    """Two segments as half-open spans of a corpus's tokens; the second may be empty."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int
    is_random: bool
    """True if the second segment does not follow the first in the text."""


class Rule(NamedTuple):
    """The options in which the originals differ when they make pairs."""

    sequence_length: int
    short_sequence_probability: float
    random_second: bool
    """True if the second of several sentences' segments is drawn from another document half of the time."""
    second_joins_first: bool
    """True if a second segment that does follow is appended to the first, so that the second stays empty."""
    other_document: Callable[[int, random.Random], int]
    """Draws the document that random segments come from, given the current one."""


def make_pairs(corpus: Corpus, document: int, rule: Rule, draws: random.Random) -> Iterator[Pair]:
    """Yield the pairs of one document in order; numbers are drawn lazily, so that a caller may draw in between.

    Sentences are gathered until they fill a target length, mostly the whole sequence, and divided at a random sentence.
    Where the second segment comes from another document, the sentences after the division are used again.
    """
    first, last = corpus.document_starts[document : document + 2].tolist()
    starts: list[int] = corpus.sentence_starts[first : last + 1].tolist()
    room = target = rule.sequence_length - SPECIAL_TOKENS
    if draws.random() < rule.short_sequence_probability:
        target = draws.randint(2, room)
    begin = sentence = 0
    while sentence < last - first:
        if sentence == last - first - 1 or starts[sentence + 1] - starts[begin] >= target:
            sentences = sentence + 1 - begin
            divide = draws.randrange(1, sentences) if sentences >= 2 else 1
            start, middle, stop = starts[begin], starts[begin + divide], starts[sentence + 1]
            if sentences == 1 or (rule.random_second and draws.random() < 0.5):
                pair = Pair(start, middle, *_draw_elsewhere(corpus, document, target - (middle - start), rule, draws), True)
                sentence -= sentences - divide
            elif rule.second_joins_first:
                pair = Pair(start, stop, stop, stop, False)
            else:
                pair = Pair(start, middle, middle, stop, False)
            yield truncate(pair, room, draws)
            begin = sentence + 1
        sentence += 1


def _draw_elsewhere(corpus: Corpus, document: int, wanted: int, rule: Rule, draws: random.Random) -> tuple[int, int]:
    """Return a span of whole sentences with `wanted` tokens or more, from a random sentence of another document on."""
    other = rule.other_document(document, draws)
    first, stop = corpus.document_starts[other : other + 2].tolist()
    begin = first + draws.randrange(0, stop - first)
    start = int(corpus.sentence_starts[begin])
    end = bisect_left(corpus.sentence_starts, start + wanted, begin + 1, stop)
    return start, int(corpus.sentence_starts[end])


def truncate(pair: Pair, room: int, draws: random.Random) -> Pair:
    """Return the pair cut to `room` tokens, one by one: from the longer segment (the second if equal), at a random end.

    >>> truncate(Pair(0, 6, 10, 12, False), 6, random.Random(0))
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


def mask_tokens(
    tokens: list[int], candidates: list[list[int]], count: int, mask: int, vocabulary_size: int, draws: random.Random
) -> tuple[list[int], list[int]]:
    """Mask `count` tokens at most, in place: four of five become `mask`, of the rest half stay and half become random ones.

    `candidates` are groups of positions that are masked together or not at all; they are shuffled. Random tokens are below
    `vocabulary_size`. The result is the masked positions, ascending, and the original tokens there.
    """
    draws.shuffle(candidates)
    labels: dict[int, int] = {}
    for positions in candidates:
        if len(labels) >= count:
            break
        if len(labels) + len(positions) > count:
            continue
        for position in positions:
            labels[position] = tokens[position]
            if draws.random() < 0.8:
                tokens[position] = mask
            elif draws.random() >= 0.5:
                tokens[position] = draws.randrange(vocabulary_size)
    ascending = sorted(labels)
    return ascending, [labels[position] for position in ascending]
