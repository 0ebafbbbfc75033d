import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from relm.examples.order import epochs_of, example_indices, rank_positions, row_keys


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


def test_a_single_position_is_the_same_as_among_many() -> None:
    together = example_indices(3, np.arange(5000), 1234)
    assert [int(example_indices(3, np.array([p]), 1234)[0]) for p in (0, 1, 1233, 1234, 4999)] == [
        int(together[p]) for p in (0, 1, 1233, 1234, 4999)
    ]
    assert np.array_equal(example_indices(3, np.arange(12).reshape(3, 4), 1234), together[:12].reshape(3, 4))


def test_epochs_and_seeds_have_different_orders() -> None:
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


def test_sizes_far_beyond_two_to_the_forty_stay_a_permutation() -> None:
    for size in (2**40 + 1, 2**62):
        drawn = example_indices(1, np.arange(10_000), size)
        assert drawn.min() >= 0
        assert drawn.max() < size
        assert len(np.unique(drawn)) == 10_000


def test_memory_does_not_grow_with_the_count_of_examples() -> None:
    peaks = []
    for size in (10**4, 10**10):
        tracemalloc.start()
        example_indices(1, np.arange(1000) + 7 * size, size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 500_000


def test_positions_are_in_the_epoch_of_their_examples() -> None:
    assert epochs_of(np.array([[0, 2], [3, 7]]), 3).tolist() == [[0, 0], [1, 2]]
    assert epochs_of(np.array([2**40 * 3 - 1], dtype=np.uint64), 2**40).tolist() == [2]
    size = 11
    positions = np.arange(5 * size)
    drawn = example_indices(4, positions, size)
    for epoch in range(5):
        assert sorted(drawn[epochs_of(positions, size) == epoch].tolist()) == list(range(size))


def test_a_step_takes_the_positions_after_those_of_the_step_before() -> None:
    assert rank_positions(1, 4).tolist() == [0, 1, 2, 3]
    assert rank_positions(3, 4).tolist() == [8, 9, 10, 11]
    assert rank_positions(3, 4, rank=1, ranks=2).tolist() == [10, 11]
    assert rank_positions(10**12, 2048, rank=2047, ranks=2048).tolist() == [2048 * 10**12 - 1]


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("workers", [1, 3])
def test_global_batches_are_the_same_for_any_number_of_ranks_and_workers(ranks, workers) -> None:
    size, global_batch = 100, 24
    for step in (1, 4, 5, 9):  # the fifth reaches into the second epoch
        whole = example_indices(9, np.arange((step - 1) * global_batch, step * global_batch), size)
        pieces = []
        for rank in range(ranks):
            positions = rank_positions(step, global_batch, rank, ranks)
            pieces += [example_indices(9, part, size) for part in np.array_split(positions, workers)]
        assert np.concatenate(pieces).tolist() == whole.tolist()


def test_batches_that_are_not_divisible_by_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="a global batch of 10 is not divisible by 4 ranks"):
        rank_positions(1, 10, 0, 4)
    with pytest.raises(ValueError, match=r"rank must be in 0\.\.1, found 2"):
        rank_positions(1, 10, 2, 2)
    with pytest.raises(ValueError, match="steps count from 1, found 0"):
        rank_positions(0, 10)


def test_rows_have_separate_keys_for_each_purpose_seed_and_epoch() -> None:
    epochs, indices = (grid.ravel() for grid in np.meshgrid(np.arange(30), np.arange(300)))
    keys = [row_keys(purpose, seed, epochs, indices) for purpose in ("a", "b") for seed in (0, 1)]
    assert len(np.unique(np.concatenate(keys))) == 4 * 9000
    assert row_keys("a", 0, epochs[5:7], indices[5:7]).tolist() == keys[0][5:7].tolist()
    bits = np.unpackbits(np.concatenate(keys).view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert bits == pytest.approx(np.full(64, 0.5), abs=0.015)


def test_the_keys_of_rows_never_change() -> None:
    # What is drawn for an example follows from these: they may not change for any reason.
    assert row_keys("a", 0, np.array([0, 0, 1]), np.array([0, 1, 0])).tolist() == [
        5112120151031359809,
        7586684847664223279,
        9994468916385003536,
    ]


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be in"):
        example_indices(0, np.arange(3), 0)
    with pytest.raises(ValueError, match="must not be negative"):
        example_indices(0, np.array([3, -1]), 10)
