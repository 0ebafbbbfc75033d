"""The terms of a loss: sums over scored labels, so that the caller decides what they are divided by."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED_LABEL = -100


class Term(NamedTuple):
    """One part of a loss, as scalars on the device: nothing here has waited for it."""

    nats: Tensor
    """Sum of -ln P over the scored labels, float32, with a gradient."""
    count: Tensor  # type: ignore[assignment]
    """Labels that were scored, int64."""
    correct: Tensor
    """Scored labels that are the likeliest token; the first of several equally likely ones."""


def cross_entropy(logits: Tensor, labels: Tensor, traced: bool = False) -> Term:
    """Score labels under logits.

    Args:
        logits: (..., classes), any floating type; logarithms and sums are taken in float32.
        labels: (...) int64; -100 is not scored, and sends no gradient.
        traced: as of `relm.models.layers.TracedModule`.
    """
    flat, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    scored = wanted != IGNORED_LABEL
    if traced:
        each, likeliest = scored_in_one_pass(flat.float(), wanted)
        return Term(torch.where(scored, each, 0.0).sum(), scored.sum(), (likeliest & scored).sum())
    nats = F.cross_entropy(flat.float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
    # No class has the number -100, so what is not scored is never correct.
    return Term(nats, scored.sum(), (flat.detach().argmax(-1) == wanted).sum())


def scored_in_one_pass(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return -ln P of each label, and whether it is the likeliest, in the form for a compiler.

    The compiler takes the greatest logits as it computes them, and all else in one pass over the logits; those of 250,000
    classes are as many bytes as a small model.

    Args:
        logits: (positions, classes) float32.
        labels: (positions,) int64.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    best = logits.detach().amax(1, keepdim=True)
    of_label = torch.where(classes == labels[:, None], logits, 0.0).sum(1)
    nats = (logits - best).exp().sum(1).log() + best[:, 0] - of_label
    # Summed as float32, as all sums of one pass must be.
    earlier = torch.where((logits.detach() == best) & (classes < labels[:, None]), 1.0, 0.0).sum(1)
    return nats, (of_label.detach() == best[:, 0]) & (earlier == 0)
