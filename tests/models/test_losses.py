"""Sums over scored labels, small enough to check by hand."""

import math

import pytest
import torch

from relm.models.losses import cross_entropy


def test_nats_count_and_correct_of_four_labels() -> None:
    # P = (1/2, 1/2), the first asked for; then (3/4, 1/4), the second asked for; then (1/4, 3/4) twice, the second again.
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [0.0, math.log(3)], [0.0, math.log(3)]])
    term = cross_entropy(logits, torch.tensor([0, 1, 1, 1]))
    assert term.nats.item() == pytest.approx(math.log(2) + math.log(4) + 2 * math.log(4 / 3))
    assert (term.count.item(), term.correct.item()) == (4, 3)


def test_ignored_labels_are_not_summed_counted_or_correct_and_send_no_gradient() -> None:
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    term = cross_entropy(logits, torch.tensor([[0, -100, 3]]))
    assert (term.count.item(), term.correct.item()) == (2, 1)  # of equals, the first is the likeliest
    assert term.nats.item() == pytest.approx(2 * math.log(4))
    term.nats.backward()
    assert logits.grad[0, 1].eq(0).all()
    assert logits.grad[0, 0].tolist() == [-0.75, 0.25, 0.25, 0.25]


def test_a_batch_with_nothing_to_score_is_zero_and_not_nan() -> None:
    logits = torch.randn(2, 5, requires_grad=True)
    term = cross_entropy(logits, torch.full((2,), -100))
    term.nats.backward()
    assert (term.nats.item(), term.count.item(), term.correct.item()) == (0, 0, 0)
    assert logits.grad.eq(0).all()


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1000, 3, dtype=torch.bfloat16)
    term = cross_entropy(logits, torch.zeros(1000, dtype=torch.int64))
    assert term.nats.dtype == torch.float32
    assert term.nats.item() == pytest.approx(1000 * math.log(3), rel=1e-6)
