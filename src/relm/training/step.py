"""The gradient of one global batch, in as many micro-batches as memory asks for. Imports torch and the model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relm.models.losses import IGNORED_LABEL, Term

# Over what the mean of a term's losses is taken.
GLOBAL_TOKENS, PER_REPLICA, PER_MICRO_BATCH = "global_tokens", "per_replica", "per_micro_batch"
NORMALISATIONS = (GLOBAL_TOKENS, PER_REPLICA, PER_MICRO_BATCH)
# Objective -> term of the loss -> the labels in a batch that it scores.
_LABELS = {
    "causal": {"next_token": "labels"},
    "masked": {"masked_token": "masked_labels", "next_sentence": "next_sentence_labels"},
    "seq2seq": {"target_token": "labels"},
    "span_corruption": {"target_token": "labels"},
}


class Accumulated(NamedTuple):
    """What a global batch came to."""

    loss: Tensor
    """Of which the gradients are, without the loss scale: a scalar on the device."""
    terms: dict[str, Term]
    """Each term's sums over all micro-batches."""


def scored_counts(batch: Mapping[str, Any], objective: str) -> dict[str, int]:
    """How many labels each term of a model's loss scores in a batch that is still on the host.

    Args:
        batch: arrays by name, see `relm.examples.contract.Examples`.
    """
    names = _LABELS[objective]
    return {term: int((batch[name] != IGNORED_LABEL).sum()) for term, name in names.items() if name in batch}


def loss_denominators(
    counts: Sequence[Mapping[str, int]],
    normalisation: str,
    replicas: int = 1,
    weights: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """By what each micro-batch's sum of nats is divided, so that all quotients together are the loss of the global batch.

    - global_tokens: the mean over all scored labels of the global batch; how the batch is cut changes rounding only.
    - per_replica: the mean over each replica's labels, then over replicas.
    - per_micro_batch: the mean over each micro-batch's labels, then over micro-batches.

    A share without a scored label adds 0, and counts as one of the shares.

    Args:
        counts: of each micro-batch, term -> scored labels; the micro-batches of a replica follow one another.
        normalisation: one of `NORMALISATIONS`.
        replicas: among which the micro-batches are dealt out evenly.
        weights: term -> its weight in the loss; without an entry 1.

    Raises:
        ValueError: the normalisation is unknown, or the replicas do not divide the micro-batches.

    >>> loss_denominators([{"next_token": 3}, {"next_token": 1}], "global_tokens")
    [{'next_token': 4.0}, {'next_token': 4.0}]
    >>> loss_denominators([{"next_token": 3}, {"next_token": 1}], "per_micro_batch")
    [{'next_token': 6.0}, {'next_token': 2.0}]
    """
    if normalisation not in NORMALISATIONS:
        raise ValueError(f"loss_normalisation is {normalisation!r}, expected one of {', '.join(NORMALISATIONS)}")
    if replicas < 1 or len(counts) % replicas:
        raise ValueError(f"{len(counts)} micro-batches cannot be dealt out evenly to {replicas} replicas")
    shares = {GLOBAL_TOKENS: 1, PER_REPLICA: replicas, PER_MICRO_BATCH: len(counts)}[normalisation]
    length = len(counts) // shares
    denominators = []
    for first in range(0, len(counts), length):
        share = counts[first : first + length]
        sums = {name: max(1, sum(count[name] for count in share)) for name in share[0]}
        divided = {name: shares * total / (weights or {}).get(name, 1.0) for name, total in sums.items()}
        denominators += [divided] * length
    return denominators


def accumulate_terms(
    forward: Callable[[Mapping[str, Tensor]], Mapping[str, Term]],
    micro_batches: Iterable[Mapping[str, Tensor]],
    denominators: Sequence[Mapping[str, float | Tensor]],
    autocast: Callable[[], AbstractContextManager[None]],
    loss_scale: Tensor | None = None,
) -> Accumulated:
    """Add to the parameters' gradients those of the loss of a global batch.

    The loss is the sum over micro-batches and terms of nats / denominator; nothing here waits for the device.

    Args:
        forward: the model: micro-batch -> its terms.
        micro_batches: on the model's device.
        denominators: of each micro-batch, term -> what its nats are divided by; see `loss_denominators`.
        autocast: context of the forward pass.
        loss_scale: what the loss is multiplied by before the backward pass, a scalar on the device; the gradients are, too.

    Raises:
        ValueError: there are not as many micro-batches as denominators, or a term has none.
    """
    loss: Tensor | None = None
    sums: dict[str, Term] = {}
    taken = 0
    for taken, batch in enumerate(micro_batches, start=1):
        if taken > len(denominators):
            raise ValueError(f"more micro-batches than the {len(denominators)} that there are denominators for")
        with autocast():
            terms = forward(batch)
        part = _part_of_loss(terms, denominators[taken - 1])
        torch.autograd.backward(part if loss_scale is None else part * loss_scale)
        loss = part.detach() if loss is None else loss + part.detach()
        for name, term in terms.items():
            new = Term(term.nats.detach(), term.count.detach(), term.correct.detach())
            old = sums.get(name)
            sums[name] = Term(old.nats + new.nats, old.count + new.count, old.correct + new.correct) if old else new
    if loss is None or taken < len(denominators):
        raise ValueError(f"{taken} micro-batches, but denominators for {len(denominators)}")
    return Accumulated(loss, sums)


def _part_of_loss(terms: Mapping[str, Term], denominators: Mapping[str, float | Tensor]) -> Tensor:
    """What a micro-batch adds to the loss of its global batch."""
    if set(terms) != set(denominators):
        raise ValueError(f"the model's terms are {sorted(terms)}, but there are denominators for {sorted(denominators)}")
    quotients = [term.nats / denominators[name] for name, term in terms.items()]
    return sum(quotients[1:], quotients[0])
