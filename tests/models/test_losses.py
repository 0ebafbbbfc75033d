"""Sums over scored labels, small enough to check by hand."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relm.models.losses import Term, cross_entropy, cross_entropy_in_chunks, cross_entropy_of_projection, scored_in_one_pass


def test_nats_count_and_correct_of_four_labels() -> None:
    # P = (1/2, 1/2) with the first as label; then (3/4, 1/4) with the second; then (1/4, 3/4) twice, with the second.
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


def test_one_pass_for_compilers_has_the_nats_gradients_and_likeliest_of_torchs_own_form() -> None:
    generator = torch.Generator().manual_seed(3)
    # Whole numbers, so that several are the greatest in many rows.
    drawn = torch.randint(-2, 3, (200, 6), generator=generator).float()
    labels = torch.randint(0, 6, (200,), generator=generator)
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    nats, likeliest = scored_in_one_pass(ours, labels)
    term = cross_entropy(theirs, labels)
    torch.testing.assert_close(nats.sum(), term.nats)
    assert likeliest.equal(drawn.argmax(-1) == labels)
    assert 0 < term.correct < (drawn.amax(-1) == drawn.gather(1, labels[:, None])[:, 0]).sum()  # some are not the first
    nats.sum().backward()
    term.nats.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_one_pass_of_nan_logits_is_nan() -> None:
    nats, likeliest = scored_in_one_pass(torch.tensor([[1.0, math.nan]]), torch.tensor([0]))
    assert (math.isnan(nats.item()), likeliest.item()) == (True, False)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 9])
def test_chunks_of_positions_have_the_sums_and_gradients_of_the_whole(chunk: int, traced: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    labels = torch.tensor([[3, -100, 1, 0, 6], [-100, -100, 2, 2, 5]])
    outcomes = []
    for taken in (None, chunk):
        logits = torch.randn(2, 5, 7, generator=generator.manual_seed(2)).requires_grad_()
        term = cross_entropy_in_chunks(logits, labels, taken, traced)
        (term.nats / 7).backward()
        outcomes.append((term, logits.grad))
    (whole, whole_gradient), (found, gradient) = outcomes
    assert whole == cross_entropy(logits.detach(), labels, traced)
    assert [value.dtype for value in found] == [value.dtype for value in whole]
    assert (found.count, found.correct) == (whole.count, whole.correct)
    torch.testing.assert_close(found.nats, whole.nats, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-6, atol=1e-8)


def projected(chunk: int | None, biased: bool, precision: torch.dtype) -> tuple[Term, list[torch.Tensor]]:
    """Return the term of a projection to 11 classes and the gradients of its inputs; without a chunk, by all logits."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.tensor([[3, -100, 1, 0, 10], [-100, -100, 2, 2, 5]])
    hidden, weight, bias = (torch.randn(shape, generator=generator) for shape in [(2, 5, 8), (11, 8), (11,)])
    inputs = [tensor.requires_grad_() for tensor in ([hidden, weight, bias] if biased else [hidden, weight])]
    shift = bias if biased else None
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        if chunk is None:
            term = cross_entropy(torch.nn.functional.linear(hidden, weight, shift), labels)
        else:
            term = cross_entropy_of_projection(hidden, weight, shift, labels, chunk)
    (term.nats * 3 / 7).backward()
    return term, [tensor.grad for tensor in inputs if tensor.grad is not None]


@pytest.mark.parametrize(("precision", "rounding"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 9])
def test_a_projection_in_chunks_has_the_sums_and_gradients_of_all_logits(
    chunk: int, biased: bool, precision: torch.dtype, rounding: float
) -> None:
    (whole, expected), (term, found) = projected(None, biased, precision), projected(chunk, biased, precision)
    assert (term.count, term.correct) == (whole.count, whole.correct)
    assert [value.dtype for value in term] == [value.dtype for value in whole]
    torch.testing.assert_close(term.nats, whole.nats, rtol=1e-6, atol=0.0)
    assert len(found) == 2 + biased
    for gradient, wanted in zip(found, expected, strict=True):
        assert gradient.dtype == wanted.dtype
        torch.testing.assert_close(gradient, wanted, rtol=rounding, atol=rounding)


def test_a_projection_in_one_chunk_has_the_nats_of_all_logits_bit_for_bit() -> None:
    (whole, _), (term, _) = projected(None, False, torch.float32), projected(5, False, torch.float32)
    assert torch.equal(term.nats, whole.nats)


def test_a_projection_in_chunks_computes_no_gradients_where_none_are_wanted() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    with torch.no_grad():
        term = cross_entropy_of_projection(torch.zeros(1, 2, 3), weight, None, torch.tensor([[1, -100]]), 1)
    assert (term.nats.item(), term.count.item()) == (pytest.approx(math.log(4)), 1)
    assert not term.nats.requires_grad


def test_gradients_of_a_projection_in_chunks_cannot_be_read_twice_by_mistake() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    term = cross_entropy_of_projection(torch.ones(1, 2, 3), weight, None, torch.tensor([[1, 2]]), 1)
    term.nats.backward(torch.tensor(2.0), retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        term.nats.backward()


class Logits(TorchDispatchMode):
    """The largest count of elements of one result."""

    most = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        if isinstance(result, torch.Tensor):
            self.most = max(self.most, result.numel())
        return result


def test_a_chunk_bounds_the_largest_tensor_of_both_passes() -> None:
    hidden, weight = torch.randn(2, 64, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    labels = torch.zeros(2, 64, dtype=torch.int64)
    largest = []
    for chunk in (64, 8):
        with Logits() as results:
            cross_entropy_of_projection(hidden, weight, None, labels, chunk).nats.backward()
        largest.append(results.most)
    assert largest == [2 * 64 * 50, 2 * 8 * 50]
