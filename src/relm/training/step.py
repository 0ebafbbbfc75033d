"""The gradient of one global batch, accumulated over micro-batches. Imports only torch and `relm.models`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relm.models.losses import IGNORED_LABEL, Term


class Accumulated(NamedTuple):
    """The loss and terms of a global batch, accumulated over its micro-batches."""

    loss: Tensor
    """The loss, without the loss scale: a scalar on the device."""
    terms: dict[str, Term]
    """Each term's sums over all micro-batches."""


def scored_counts(batch: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, int]:
    """Return the count of labels that each term of a loss scores in a batch on the host; `labels` maps terms to names."""
    return {term: int((batch[name] != IGNORED_LABEL).sum()) for term, name in labels.items() if name in batch}


def loss_denominators(counts: Sequence[Mapping[str, int]], shares: int = 1) -> list[dict[str, float]]:
    """Return the divisor of each micro-batch's sum of nats; the sum of all quotients is the loss of the global batch.

    With one share the loss is the mean over all scored labels of the global batch (global_tokens), and its division into
    micro-batches changes only rounding. With more it is the mean over shares of the mean over each share's labels: per_replica
    has a share for each replica, per_micro_batch one for each micro-batch. A share without a scored label counts as 0.

    Args:
        counts: for each micro-batch, term -> scored labels; the micro-batches of a share follow one another.
        shares: the count of shares, among which the micro-batches are divided evenly.

    >>> loss_denominators([{"next_token": 3}, {"next_token": 1}])
    [{'next_token': 4.0}, {'next_token': 4.0}]
    >>> loss_denominators([{"next_token": 3}, {"next_token": 1}], shares=2)
    [{'next_token': 6.0}, {'next_token': 2.0}]
    """
    if shares < 1 or len(counts) % shares:
        raise ValueError(f"{len(counts)} micro-batches cannot be divided evenly among {shares} shares")
    length = len(counts) // shares
    denominators = []
    for first in range(0, len(counts), length):
        share = counts[first : first + length]
        divided = {name: float(shares * max(1, sum(count[name] for count in share))) for name in share[0]}
        denominators += [divided] * length
    return denominators


def accumulate_terms(
    forward: Callable[[Mapping[str, Tensor]], Mapping[str, Term]],
    micro_batches: Iterable[Mapping[str, Tensor]],
    denominators: Sequence[Mapping[str, float | Tensor]],
    autocast: Callable[[], AbstractContextManager[None]],
    loss_scale: Tensor | None = None,
) -> Accumulated:
    """Accumulate the gradients of a global batch's loss in the parameters, and return the loss and its terms.

    The loss is the sum over micro-batches and terms of nats / denominator. The host does not wait for the device.

    Args:
        forward: the model: micro-batch -> its terms.
        micro_batches: micro-batches on the model's device.
        denominators: for each micro-batch, term -> the divisor of its nats; see `loss_denominators`.
        autocast: returns the context of a forward pass.
        loss_scale: a scalar on the device by which the loss, and so the gradients, are multiplied before the backward pass.
    """
    loss: Tensor | None = None
    sums: dict[str, Term] = {}
    taken = 0
    for taken, batch in enumerate(micro_batches, start=1):
        if taken > len(denominators):
            raise ValueError(f"more micro-batches than the {len(denominators)} denominators")
        with autocast():
            terms = forward(batch)
        part = _part_of_loss(terms, denominators[taken - 1])
        torch.autograd.backward(part if loss_scale is None else part * loss_scale)
        # Detached: otherwise the sum would hold on to the graph of every micro-batch.
        loss = part.detach() if loss is None else loss + part.detach()
        for name, term in terms.items():
            new = Term(term.nats.detach(), term.count.detach(), term.correct.detach())
            old = sums.get(name)
            sums[name] = Term(old.nats + new.nats, old.count + new.count, old.correct + new.correct) if old else new
    if loss is None or taken < len(denominators):
        raise ValueError(f"{taken} micro-batches, but denominators for {len(denominators)}")
    return Accumulated(loss, sums)


def _part_of_loss(terms: Mapping[str, Term], denominators: Mapping[str, float | Tensor]) -> Tensor:
    """Return a micro-batch's contribution to the loss of its global batch."""
    if set(terms) != set(denominators):
        raise ValueError(f"the model's terms are {sorted(terms)}, but there are denominators for {sorted(denominators)}")
    quotients = [term.nats / denominators[name] for name, term in terms.items()]
    return sum(quotients[1:], quotients[0])  # without a start, `sum` would first compute 0 + quotient on the device
