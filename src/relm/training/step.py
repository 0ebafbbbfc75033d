"""The gradient of one global batch, in as many micro-batches as memory asks for. Imports torch and the model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from relm.models.gpt2 import causal_loss


def accumulate_gradients(
    model: nn.Module,
    micro_batches: Iterable[Tensor],
    scored_tokens: int,
    autocast: Callable[[], AbstractContextManager[None]],
) -> Tensor:
    """Add to the parameters' gradients those of the mean loss over all scored tokens of a global batch.

    Each micro-batch's sum is divided by the count of the whole batch, so how it is cut changes rounding only.

    Args:
        micro_batches: (sequences, length + 1) int64 on the model's device; each token predicts the next.
        scored_tokens: of all micro-batches together.
        autocast: context of the forward pass.

    Returns:
        The mean loss in nats, a scalar on the device: nothing here waits for it.
    """
    total: Tensor | None = None
    for batch in micro_batches:
        with autocast():
            logits = model(batch[:, :-1])
        nats, _ = causal_loss(logits, batch[:, 1:])
        loss = nats / scored_tokens
        torch.autograd.backward(loss)
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None, "a global batch has at least one micro-batch"
    return total
