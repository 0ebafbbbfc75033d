"""What a model returns to be trained on: sums over scored labels, so that the caller says what they are divided by."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

IGNORED_LABEL = -100


class Term(NamedTuple):
    """One part of a loss, as scalars on the device: nothing here has waited for it."""

    nats: Tensor
    """Sum of -ln P over the scored labels, float32, with a gradient."""
    count: Tensor  # type: ignore[assignment]
    """How many labels were scored, int64."""
    correct: Tensor
    """How many of them are the likeliest token; the first of several equally likely ones."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Term:
    """Score labels under logits.

    Args:
        logits: (..., classes), any floating type; logarithms and sums are taken in float32.
        labels: (...) int64; -100 is not scored, and sends no gradient.
    """
    flat, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    nats = F.cross_entropy(flat.float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
    # No class has the number -100, so what is not scored is never correct.
    return Term(nats, (wanted != IGNORED_LABEL).sum(), (flat.detach().argmax(-1) == wanted).sum())
