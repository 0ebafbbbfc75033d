import random
from collections.abc import Callable

import numpy as np
import pytest

from relm.examples.as_published.pairs import Corpus, Pair, Rule, make_pairs, mask_tokens, truncate


class Scripted(random.Random):
    """A generator with scripted numbers, which records the calls."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers, self.calls = list(numbers), []

    def random(self) -> float:
        self.calls.append("random")
        return self.numbers.pop(0)

    def randint(self, low: int, high: int) -> int:
        self.calls.append(f"randint {low} {high}")
        return int(self.numbers.pop(0))

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self.calls.append(f"randrange {start}" if stop is None else f"randrange {start} {stop}")
        return int(self.numbers.pop(0))

    def shuffle(self, x) -> None:
        self.calls.append(f"shuffle {len(x)}")
        x.reverse()


@pytest.fixture
def corpus() -> Corpus:
    """Two documents: sentences of 2, 3 and 4 tokens, and one of 5."""
    return Corpus(np.arange(14), np.array([0, 2, 5, 9, 14]), np.array([0, 3, 4]))


@pytest.fixture
def rule() -> Callable[..., Rule]:
    def make(length: int, random_second: bool = True, second_joins_first: bool = False) -> Rule:
        return Rule(length, 0.1, random_second, second_joins_first, lambda document, draws: 1 - document)

    return make


def test_sentences_are_gathered_until_they_fill_the_target(corpus, rule) -> None:
    draws = Scripted(0.5, 1, 0.5, 0, *[0.4] * 4)
    assert list(make_pairs(corpus, 0, rule(8), draws)) == [
        Pair(0, 2, 2, 5, is_random=False),
        Pair(6, 9, 12, 14, is_random=True),
    ]
    assert draws.calls == ["random", "randrange 1 2", "random", "randrange 0 1", *["random"] * 4]


def test_sentences_behind_a_random_pair_are_used_again(corpus, rule) -> None:
    draws = Scripted(0.5, 1, 0.4, 0, 1, 0.9)
    pairs = list(make_pairs(corpus, 0, rule(13), draws))
    assert pairs[0] == Pair(0, 2, 9, 14, is_random=True)
    assert pairs[1] == Pair(2, 5, 5, 9, is_random=False)
    assert draws.calls == ["random", "randrange 1 3", "random", "randrange 0 1", "randrange 1 2", "random"]


def test_a_second_segment_that_follows_can_join_the_first(corpus, rule) -> None:
    draws = Scripted(0.5, 2, 0.9)
    assert list(make_pairs(corpus, 0, rule(13, second_joins_first=True), draws)) == [Pair(0, 9, 9, 9, is_random=False)]


def test_without_random_seconds_a_single_sentence_still_gets_one(corpus, rule) -> None:
    draws = Scripted(0.5, 2)
    assert list(make_pairs(corpus, 1, rule(13, random_second=False), draws)) == [Pair(9, 14, 5, 9, is_random=True)]
    assert draws.calls == ["random", "randrange 0 3"]


def test_a_short_sequence_has_a_target_between_two_tokens_and_all(corpus, rule) -> None:
    draws = Scripted(0.05, 2, 0, 0, 0)
    pairs = list(make_pairs(corpus, 0, rule(13), draws))
    assert pairs == [Pair(start, stop, 9, 14, is_random=True) for start, stop in ((0, 2), (2, 5), (5, 9))]
    assert draws.calls == ["random", "randint 2 10", *["randrange 0 1"] * 3]


def test_tokens_are_cut_from_the_longer_segment_at_either_end() -> None:
    assert truncate(Pair(0, 5, 10, 12, False), 5, Scripted(0.4, 0.5)) == Pair(1, 4, 10, 12, False)
    assert truncate(Pair(0, 3, 10, 13, True), 5, Scripted(0.4)) == Pair(0, 3, 11, 13, True)
    assert truncate(Pair(0, 3, 10, 12, True), 5, Scripted()) == Pair(0, 3, 10, 12, True)


def test_masked_tokens_become_the_mask_or_stay_or_become_any_other() -> None:
    tokens = [7, 50, 51, 52, 53, 7]
    draws = Scripted(0.79, 0.8, 0.49, 0.8, 0.5, 33)
    positions, labels = mask_tokens(tokens, [[1], [2], [3], [4]], 3, 9, 100, draws)
    assert (positions, labels) == ([2, 3, 4], [51, 52, 53])
    assert tokens == [7, 50, 33, 52, 9, 7]
    assert draws.calls == ["shuffle 4", "random", "random", "random", "random", "random", "randrange 100"]


def test_a_word_that_would_exceed_the_number_is_passed_over() -> None:
    tokens = [50, 51, 52, 53]
    positions, _ = mask_tokens(tokens, [[0], [1, 2], [3]], 2, 9, 100, Scripted(0, 0))
    assert positions == [0, 3]
