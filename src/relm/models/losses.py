"""The terms of a loss, as sums over scored labels, so that the caller decides the divisor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.layers import softcapped

IGNORED_LABEL = -100


class Term(NamedTuple):
    """One part of a loss, as scalars on the device, without waiting for it."""

    nats: Tensor
    """Sum of -ln P over the scored labels, float32, with a gradient."""
    count: Tensor  # type: ignore[assignment]
    """Count of scored labels, int64."""
    correct: Tensor
    """Count of scored labels that are the likeliest token; of equally likely ones, the first."""


def cross_entropy(logits: Tensor, labels: Tensor, traced: bool = False) -> Term:
    """Score labels under logits, (..., classes) and (...) int64; -100 is not scored, and sends no gradient.

    Logarithms and sums are taken in float32, whatever the type of the logits.
    """
    flat, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    scored = wanted != IGNORED_LABEL
    if traced:
        each, likeliest = scored_in_one_pass(flat.float(), wanted)
        return Term(torch.where(scored, each, 0.0).sum(), scored.sum(), (likeliest & scored).sum())
    nats = F.cross_entropy(flat.float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
    # No class has the index -100, so an ignored label is never correct.
    return Term(nats, scored.sum(), (flat.detach().argmax(-1) == wanted).sum())


def squared_error(predicted: Tensor, wanted: Tensor) -> Term:
    """Score numbers by their squared distance, which is -ln P of a normal distribution of variance 1/2, less a constant.

    Both are (...); -100 is not scored, and sends no gradient. A prediction within one half of its number counts as correct.
    """
    scored = wanted != IGNORED_LABEL
    distances = torch.where(scored, predicted.float() - wanted, 0.0)
    return Term(distances.square().sum(), scored.sum(), (scored & (distances.detach().abs() < 0.5)).sum())


def cross_entropy_in_chunks(logits: Tensor, labels: Tensor, chunk: int | None, traced: bool = False) -> Term:
    """Score labels under logits, a chunk of each sequence at a time, and return the sums over all chunks; None: all at once.

    (batch, sequence, classes) and (batch, sequence) int64. The values are those of `cross_entropy` but for rounding. A device
    that computes one chunk at a time holds the float32 copy of only one chunk's logits.
    """
    if chunk is None:
        return cross_entropy(logits, labels, traced)
    pieces = zip(torch.split(logits, chunk, dim=1), torch.split(labels, chunk, dim=1))
    terms = [cross_entropy(some, wanted, traced) for some, wanted in pieces]
    nats, counts, corrects = zip(*terms)
    return Term(*(torch.stack(values).sum() for values in (nats, counts, corrects)))


def scored_in_one_pass(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return -ln P of each label, and whether it is the likeliest, in plain operations for a compiler.

    (positions, classes) float32 and (positions,) int64. The compiler finds the greatest logits while it computes them, and the
    rest in one pass over the logits, which for 250,000 classes take as many bytes as a small model.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    best = logits.detach().amax(1, keepdim=True)
    of_label = torch.where(classes == labels[:, None], logits, 0.0).sum(1)
    nats = (logits - best).exp().sum(1).log() + best[:, 0] - of_label
    # In float32, as all sums of one pass must be.
    earlier = torch.where((logits.detach() == best) & (classes < labels[:, None]), 1.0, 0.0).sum(1)
    return nats, (of_label.detach() == best[:, 0]) & (earlier == 0)


def cross_entropy_of_projection(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int, softcap: float | None = None
) -> Term:
    """Score labels under the logits `hidden @ weight.T + bias`, with only one chunk of them in memory at a time.

    The forward pass computes the gradients as well, chunk by chunk (the idea of the Liger kernels, Hsu et al. 2024, arXiv
    2410.10989): as many products as with all logits at once. In float32 the sums and gradients are those of `cross_entropy` but
    for rounding. In lower precision the logits' gradient is rounded before it is multiplied by the loss scale and divided by
    the count of labels, not after it, and the weight's gradient is added up in float32.

    `hidden` is (batch, positions, hidden), `labels` (batch, positions) int64, where -100 is not scored and sends no gradient.
    `chunk` counts positions of a sequence; `softcap` is the limit to which `softcapped` bends the logits, if any.
    """
    product = _product_type(hidden)
    if torch.is_grad_enabled():
        nats, correct = _ScoredProjection.apply(hidden, weight, bias, labels, chunk, softcap, product)  # type: ignore[no-untyped-call]
        return Term(nats, (labels != IGNORED_LABEL).sum(), correct)
    pieces = zip(torch.split(hidden, chunk, dim=1), torch.split(labels, chunk, dim=1))
    terms = [cross_entropy(_bent(F.linear(rows, weight, bias), softcap), wanted) for rows, wanted in pieces]
    return Term(*(torch.stack(values).sum() for values in zip(*terms)))


def _bent(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcapped(logits, softcap)


def _product_type(hidden: Tensor) -> torch.dtype:
    """Return the type in which autocast multiplies matrices here."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


class _ScoredProjection(torch.autograd.Function):
    """A projection to the vocabulary and its loss, whose forward pass leaves the gradients and no logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        chunk: int,
        softcap: float | None,
        product: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        matrix, shift = weight.to(product), None if bias is None else bias.to(product)
        of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        of_hidden, nats, correct = [], [], []
        for piece, wanted in zip(torch.split(hidden, chunk, dim=1), torch.split(labels, chunk, dim=1)):
            rows = piece.reshape(-1, piece.shape[-1]).to(product)
            logits = F.linear(rows, matrix, shift).float()
            of_chunk, right, slope = _score_with_gradient(_bent(logits, softcap), wanted.reshape(-1))
            nats.append(of_chunk)
            correct.append(right)
            if softcap is not None:
                slope *= softcap**3 * (logits.square() + softcap**2).pow(-1.5)
            gradient = slope.to(product)
            of_hidden.append((gradient @ matrix).view(piece.shape).to(hidden.dtype))
            if product == torch.float32:
                of_weight.addmm_(gradient.t(), rows)
            else:
                of_weight += gradient.t() @ rows
            if of_bias is not None:
                of_bias += slope.sum(0)
        ctx.save_for_backward(torch.cat(of_hidden, dim=1), of_weight, of_bias)
        ctx.weight_type = weight.dtype
        return torch.stack(nats).sum(), torch.stack(correct).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, of_correct: Tensor | None) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        shift = None if of_bias is None else (of_bias * upstream).to(ctx.weight_type)
        # In place where it can be, since the weight's gradient may be a gigabyte; torch raises an error if it is read again.
        scaled = of_weight * upstream if torch.compiler.is_compiling() else of_weight.mul_(upstream)
        return of_hidden * upstream.to(of_hidden.dtype), scaled.to(ctx.weight_type), shift, None, None, None, None


def _score_with_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nats of a chunk, its count of correct labels, and the gradient of its nats by the logits, all as in torch.

    (positions, classes) float32 and (positions,) int64.
    """
    logarithms = F.log_softmax(logits, -1)
    nats = F.nll_loss(logarithms, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    correct = (logits.argmax(-1) == labels).sum()
    ignored = labels[:, None] == IGNORED_LABEL
    wanted = labels[:, None].masked_fill(ignored, 0)
    gradient = logarithms.exp_()
    gradient.scatter_(1, wanted, gradient.gather(1, wanted) - 1)
    return nats, correct, gradient.masked_fill_(ignored, 0.0)
