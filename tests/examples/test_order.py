import math

import numpy as np
import pytest
from scipy import stats

from relm.examples.order import example_indices, mixed


def test_every_epoch_reads_every_example_once() -> None:
    for size in (*range(1, 301), 1000, 4097, 2**16, 65_537, 99_991):
        epochs = example_indices(7, np.arange(3 * size), size).reshape(3, size)
        assert np.array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(size), (3, size))), size


def test_the_order_never_changes() -> None:
    # Runs are resumed by these numbers: they may not change for any reason.
    assert example_indices(0, np.arange(12), 10).tolist() == [5, 3, 7, 8, 0, 1, 9, 4, 6, 2, 8, 9]
    assert example_indices(1, np.arange(6), 6).tolist() == [4, 2, 0, 3, 5, 1]
    assert example_indices(42, np.array([0, 1, 10**10 - 1, 10**10, 10**12]), 10**10).tolist() == [
        4311811024,
        5595045941,
        1978220573,
        5278603369,
        7808284893,
    ]
    assert example_indices(2**70, np.array([5, 2**41]), 2**40).tolist() == [804233091401, 730458488106]


def test_one_position_alone_is_the_same_as_among_many() -> None:
    together = example_indices(3, np.arange(5000), 1234)
    assert [int(example_indices(3, np.array([p]), 1234)[0]) for p in (0, 1, 1233, 1234, 4999)] == [
        int(together[p]) for p in (0, 1, 1233, 1234, 4999)
    ]
    assert np.array_equal(example_indices(3, np.arange(12).reshape(3, 4), 1234), together[:12].reshape(3, 4))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    size = 1000
    orders = [example_indices(seed, np.arange(3 * size), size).reshape(3, size) for seed in range(3)]
    rows = np.concatenate(orders)
    agreements = (rows[:, None] == rows[None]).sum(-1)[~np.eye(9, dtype=bool)]
    assert agreements.max() <= 8  # two random permutations agree in one place on average


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
def test_all_permutations_of_a_few_examples_are_equally_likely(size: int) -> None:
    orders = math.factorial(size)
    epochs = 50 * orders
    drawn = example_indices(11, np.arange(epochs * size), size).reshape(epochs, size)
    _, counts = np.unique(drawn @ size ** np.arange(size), return_counts=True)
    assert len(counts) == orders
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("size", [8, 9, 12, 25, 64, 97])
def test_neighbours_in_an_epoch_are_any_pair_equally_often(size: int) -> None:
    epochs = 20 * size * size
    for first, second in ((0, 1), (0, size - 1), (size // 2, size // 2 + 1)):
        drawn = example_indices(12, np.arange(epochs)[:, None] * size + np.array([first, second]), size)
        pairs = np.bincount(drawn[:, 0] * size + drawn[:, 1], minlength=size * size).reshape(size, size)
        assert not pairs.diagonal().any()
        assert stats.chisquare(pairs[~np.eye(size, dtype=bool)]).pvalue > 1e-4


def test_examples_of_a_large_set_come_from_everywhere_at_every_time() -> None:
    size = 10**10
    positions = np.random.default_rng(0).integers(0, size, 100_000)
    drawn = example_indices(13, positions, size)
    cells = (positions * 32 // size) * 32 + drawn * 32 // size
    assert stats.chisquare(np.bincount(cells, minlength=1024)).pvalue > 1e-4
    steps = np.diff(example_indices(13, np.arange(50_000), size))
    assert stats.kstest(np.abs(steps) / size, stats.triang(0).cdf).pvalue > 1e-4
    assert len(np.unique(drawn)) == len(np.unique(positions))


def test_sizes_far_beyond_two_to_the_forty_stay_a_permutation() -> None:
    for size in (2**40 + 1, 2**62):
        drawn = example_indices(1, np.arange(10_000), size)
        assert drawn.min() >= 0
        assert drawn.max() < size
        assert len(np.unique(drawn)) == 10_000


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="size must lie in"):
        example_indices(0, np.arange(3), 0)
    with pytest.raises(ValueError, match="must not be negative"):
        example_indices(0, np.array([3, -1]), 10)


def test_one_flipped_bit_flips_half_of_the_mixed_bits() -> None:
    values = np.random.default_rng(1).integers(0, 2**63, 2000).astype(np.uint64)
    for bit in range(64):
        flipped = mixed(values) ^ mixed(values ^ np.uint64(1 << bit))
        assert np.bitwise_count(flipped).mean() == pytest.approx(32, abs=0.6)
