import math

import numpy as np
import pytest

from relm.evaluation import baselines
from relm.evaluation.baselines import BigramModel, blocks, unigram_entropy


def i8(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class Stream:
    """Tokens in memory, with the interface of a `TokenStream`."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.all = tokens

    def __len__(self) -> int:
        return len(self.all)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        return self.all[start:stop]


def test_blocks_overlap_by_one_token_so_that_every_pair_is_in_one(monkeypatch) -> None:
    monkeypatch.setattr(baselines, "BLOCK", 3)
    assert [block.tolist() for block in blocks(Stream(np.arange(8)), 100)] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    assert [block.tolist() for block in blocks(Stream(np.arange(7)), 100)] == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert [block.tolist() for block in blocks(Stream(np.arange(8)), 5)] == [[0, 1, 2, 3], [3, 4]]
    assert list(blocks(Stream(np.arange(1)), 5)) == []


def test_the_unigram_level_is_the_entropy_of_the_scored_tokens() -> None:
    # 9 is not scored; then a half, a quarter and a quarter.
    assert unigram_entropy([i8(9, 1, 1), i8(1, 2, 5)], 10) == pytest.approx(1.5 * math.log(2))


def test_bigram_probabilities_are_those_computed_by_hand() -> None:
    # Pairs: 01 twice, 12 once, 20 twice, 02 once, 10 once. n1 = 3, n2 = 2: D = 3/7.
    model = BigramModel.estimated([i8(0, 1, 2, 0, 1, 0, 2, 0)], 4)
    assert model.discount == pytest.approx(3 / 7)
    # Tokens that precede 0: 2 and 1; that precede 1: 0; that precede 2: 1 and 0. n1 = 1, n2 = 2: D = 1/5; 5 pairs in all.
    beneath = 1 / 5 * 3 / 5 / 4
    lower = [(2 - 1 / 5) / 5 + beneath, (1 - 1 / 5) / 5 + beneath, (2 - 1 / 5) / 5 + beneath, beneath]
    assert model.lower == pytest.approx(lower)
    # 0 was followed 3 times, by 2 different tokens; 2 twice, by 1; 3 never.
    found = model.probabilities(i8(0, 0, 0, 2, 2, 3), i8(1, 2, 3, 0, 1, 2))
    expected = [
        (2 - 3 / 7) / 3 + 3 / 7 * 2 / 3 * lower[1],
        (1 - 3 / 7) / 3 + 3 / 7 * 2 / 3 * lower[2],
        3 / 7 * 2 / 3 * lower[3],
        (2 - 3 / 7) / 2 + 3 / 7 * 1 / 2 * lower[0],
        3 / 7 * 1 / 2 * lower[1],
        lower[2],
    ]
    assert found == pytest.approx(expected)
    assert model.nats([i8(0, 1), i8(3, 2)]) == pytest.approx(-math.log(expected[0]) - math.log(expected[5]))


@pytest.mark.parametrize(
    "training", [[0, 0], [1, 2, 3], [0, 1, 0, 1, 0, 1], list(np.random.default_rng(0).zipf(1.5, 500) % 12)]
)
def test_probabilities_sum_to_one_after_every_token(training) -> None:
    model = BigramModel.estimated([i8(*training)], 12)
    previous, following = np.divmod(np.arange(144), 12)
    probabilities = model.probabilities(previous, following).reshape(12, 12)
    assert probabilities.min() > 0
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(12))


def test_counting_in_blocks_changes_nothing(monkeypatch) -> None:
    stream = Stream(np.random.default_rng(1).zipf(1.3, 5000) % 50)
    whole = BigramModel.estimated(blocks(stream, 10**9), 50)
    nats = whole.nats(blocks(stream, 10**9))
    monkeypatch.setattr(baselines, "BLOCK", 7)
    pieces = BigramModel.estimated(blocks(stream, 10**9), 50)
    for name in ("pairs", "counts", "context_counts", "context_types", "lower"):
        assert np.array_equal(getattr(pieces, name), getattr(whole, name)), name
    assert whole.counts.sum() == len(stream) - 1
    assert pieces.nats(blocks(stream, 10**9)) == pytest.approx(nats, rel=1e-12)


def test_pairs_of_a_large_vocabulary_are_distinct() -> None:
    size = 250_100
    model = BigramModel.estimated([i8(size - 1, size - 1, 0, size - 1)], size)
    assert model.pairs.tolist() == [size - 1, (size - 1) * size, size * size - 1]
    assert model.counts.tolist() == [1, 1, 1]
