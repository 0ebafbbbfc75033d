"""Positions of sequences by the numbers of rows: the values and gradients of torch's `gather`, bit for bit."""

import pytest
import torch

from relm.models.gathering import gathered

HIDDEN, POSITIONS = (3, 11, 5), (3, 6)


def outcome(form: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and gradients; every sequence has a position that is taken several times."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(HIDDEN, generator=generator).to(dtype).requires_grad_()
    positions = torch.randint(0, 4, POSITIONS, generator=generator)
    taken = (
        hidden.gather(1, positions[:, :, None].expand(-1, -1, HIDDEN[2])) if form == "gather" else gathered(hidden, positions)
    )
    taken.backward(torch.randn(taken.shape, generator=generator).to(dtype))
    assert hidden.grad is not None
    return taken.detach(), hidden.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_have_the_bits_of_gather_in_both_passes(dtype: torch.dtype) -> None:
    for found, wanted in zip(outcome("rows", dtype), outcome("gather", dtype), strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, wanted)


def test_a_tensor_of_another_layout_gives_its_own_rows() -> None:
    hidden = torch.arange(24.0).reshape(3, 2, 4).transpose(0, 1)
    assert gathered(hidden, torch.tensor([[2, 0], [1, 1]])).tolist() == [
        [[16, 17, 18, 19], [0, 1, 2, 3]],
        [[12, 13, 14, 15], [12, 13, 14, 15]],
    ]


def test_without_positions_all_are_returned() -> None:
    hidden = torch.zeros(HIDDEN)
    assert gathered(hidden, None) is hidden
