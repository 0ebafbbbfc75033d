"""Attention written out for compilers, compared with torch's own."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relm.models.attention import attention, written_out

HIDDEN_PADDING = torch.arange(7)[None, None, None, :] < torch.tensor([7, 4])[:, None, None, None]


def heads(keys: int = 7) -> list[torch.Tensor]:
    """Return queries at 7 positions, keys and values at `keys`, for 2 sequences and 3 heads of width 4."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, 3, length, 4, generator=generator).requires_grad_() for length in (7, keys, keys)]


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        (7, {}),
        (5, {}),
        (7, {"seen": HIDDEN_PADDING}),
        (7, {"seen": torch.linspace(-3, 3, 3 * 49).view(1, 3, 7, 7), "scale": 1.0}),
        (7, {"causal": True}),
    ],
    ids=["all", "another-sequence", "padding", "bias", "causal"],
)
def test_values_and_gradients_are_those_of_torchs_own_form(keys, given) -> None:
    theirs, ours = heads(keys), heads(keys)
    expected = attention(*theirs, **given)
    found = written_out(*ours, **{"seen": None, "dropout": 0.0, "scale": None, "causal": False, **given})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for result in (expected, found):
        (result * torch.linspace(0, 1, result.numel()).view_as(result)).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_a_sequence_that_sees_nothing_stays_finite() -> None:
    query, key, value = heads()
    mixed = written_out(query, key, value, torch.zeros(2, 1, 1, 7, dtype=torch.bool), 0.0, None, False)
    torch.testing.assert_close(mixed, value.mean(2, keepdim=True).expand_as(mixed))


def test_dropout_leaves_out_its_share_of_the_weights_and_scales_the_rest() -> None:
    torch.manual_seed(1)
    query, key = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 5000, 2)
    mixed = written_out(query, key, torch.ones(1, 1, 5000, 2), None, 0.25, None, False)
    assert mixed[..., 0].flatten().tolist() == pytest.approx([1.0] * 4, abs=0.05)
    assert len(set(mixed[..., 0].flatten().tolist())) == 4
    shares = mixed[0, 0, :, 0] * 5000 * 0.75
    torch.testing.assert_close(shares, shares.round(), rtol=0, atol=0.1)


class Softmaxes(TorchDispatchMode):
    """Record the types in which softmax is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[torch.dtype] = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        if function is torch.ops.aten._softmax.default:
            self.types.append(result.dtype)
        return result


def test_softmax_of_half_precision_is_computed_in_float32() -> None:
    with Softmaxes() as softmaxes:
        mixed = written_out(*(part.bfloat16() for part in heads()), None, 0.0, None, False)
    assert (softmaxes.types, mixed.dtype) == ([torch.float32], torch.bfloat16)
