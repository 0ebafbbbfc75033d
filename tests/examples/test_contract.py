"""The examples that a run reads at its positions."""

import numpy as np
import pytest

from relm.examples.contract import draw_indices, numbers_at
from relm.examples.order import example_indices


class Numbered:
    """Examples with nothing but a count."""

    def __init__(self, size: int, **flags: bool) -> None:
        self.size = size
        vars(self).update(flags)

    def __len__(self) -> int:
        return self.size


POSITIONS = np.array([0, 4, 5, 14])


def test_examples_are_permuted_by_default() -> None:
    indices, epochs = numbers_at(Numbered(5), 7, POSITIONS)
    assert indices.tolist() == example_indices(7, POSITIONS, 5).tolist()
    assert epochs.tolist() == [0, 0, 1, 2]
    assert numbers_at(Numbered(5, is_drawn=False), 7, POSITIONS)[0].tolist() == indices.tolist()


def test_ordered_examples_are_read_from_first_to_last() -> None:
    indices, epochs = numbers_at(Numbered(5, is_ordered=True), 7, POSITIONS)
    assert (indices.tolist(), epochs.tolist()) == ([0, 4, 0, 4], [0, 0, 1, 2])


def test_drawn_examples_are_drawn_with_replacement() -> None:
    indices, epochs = numbers_at(Numbered(5, is_drawn=True), 7, POSITIONS)
    assert indices.tolist() == draw_indices(7, POSITIONS, 5).tolist()
    assert epochs.tolist() == [0, 0, 1, 2]


def test_draws_never_change() -> None:
    """Published runs read these examples."""
    assert draw_indices(0, np.arange(6), 10).tolist() == [1, 0, 7, 2, 5, 4]
    assert draw_indices(1, np.array([10**12]), 1_003_790).tolist() == [959865]


def test_any_position_can_be_drawn_by_itself() -> None:
    together = draw_indices(3, np.arange(2000), 1234)
    assert [int(draw_indices(3, np.array([position]), 1234)[0]) for position in (0, 1, 1233, 1234, 1999)] == [
        together[position] for position in (0, 1, 1233, 1234, 1999)
    ]


@pytest.mark.parametrize("size", [2, 7, 64])
def test_every_example_is_as_likely_at_every_position(size: int) -> None:
    draws = 4000 * size
    counts = np.bincount(draw_indices(11, np.arange(draws), size), minlength=size)
    chi_square = float(((counts - 4000) ** 2 / 4000).sum())
    # Of size - 1 degrees of freedom: five sigma from its mean, so that nothing but a fault fails.
    assert abs(chi_square - (size - 1)) < 5 * np.sqrt(2 * (size - 1)) + 5
