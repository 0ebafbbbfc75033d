"""The terms of a loss, as sums over scored labels, so that the caller decides the divisor."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED_LABEL = -100


class Term(NamedTuple):
    """One part of a loss, as scalars on the device, which nothing here has waited for."""

    nats: Tensor
    """Sum of -ln P over the scored labels, float32, with a gradient."""
    count: Tensor  # type: ignore[assignment]
    """Count of scored labels, int64."""
    correct: Tensor
    """Count of scored labels that are the likeliest token; of equally likely ones, the first."""


def cross_entropy(logits: Tensor, labels: Tensor, traced: bool = False) -> Term:
    """Score labels under logits.

    Args:
        logits: (..., classes), any floating type; logarithms and sums are taken in float32.
        labels: (...) int64; -100 is not scored, and sends no gradient.
        traced: see `relm.models.layers.TracedModule`.
    """
    flat, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    scored = wanted != IGNORED_LABEL
    if traced:
        each, likeliest = scored_in_one_pass(flat.float(), wanted)
        return Term(torch.where(scored, each, 0.0).sum(), scored.sum(), (likeliest & scored).sum())
    nats = F.cross_entropy(flat.float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
    # No class has the index -100, so an ignored label is never correct.
    return Term(nats, scored.sum(), (flat.detach().argmax(-1) == wanted).sum())


def cross_entropy_in_chunks(logits: Tensor, labels: Tensor, chunk: int | None, traced: bool = False) -> Term:
    """Score labels under logits, a chunk of each sequence at a time, and return the sums over all chunks.

    The values are those of `cross_entropy` but for rounding; a device that computes one chunk after the other has the float32
    copy of a chunk's logits alone in its memory.

    Args:
        logits: (batch, sequence, classes).
        labels: (batch, sequence) int64.
        chunk: positions of a sequence in a chunk, the last of which may have fewer; None: all.
        traced: see `relm.models.layers.TracedModule`.
    """
    if chunk is None:
        return cross_entropy(logits, labels, traced)
    pieces = zip(torch.split(logits, chunk, dim=1), torch.split(labels, chunk, dim=1))
    terms = [cross_entropy(some, wanted, traced) for some, wanted in pieces]
    nats, counts, corrects = zip(*terms)
    return Term(*(torch.stack(values).sum() for values in (nats, counts, corrects)))


def scored_in_one_pass(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return -ln P of each label, and whether it is the likeliest, in plain operations for a compiler.

    The compiler finds the greatest logits while it computes them, and the rest in one pass over the logits, which for
    250,000 classes are as many bytes as a small model.

    Args:
        logits: (positions, classes) float32.
        labels: (positions,) int64.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    best = logits.detach().amax(1, keepdim=True)
    of_label = torch.where(classes == labels[:, None], logits, 0.0).sum(1)
    nats = (logits - best).exp().sum(1).log() + best[:, 0] - of_label
    # In float32, as all sums of one pass must be.
    earlier = torch.where((logits.detach() == best) & (classes < labels[:, None]), 1.0, 0.0).sum(1)
    return nats, (of_label.detach() == best[:, 0]) & (earlier == 0)
