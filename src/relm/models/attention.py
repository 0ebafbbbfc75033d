"""Attention over heads, by torch's own kernels or in plain operations for a compiler that fuses them.

Vaswani et al. 2017, "Attention Is All You Need": softmax(query @ key.T * scale) @ value, with dropout on the softmax.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# The bias of a logit that must not be attended to. Every floating type can represent it, so it may be cast; nothing is left of
# it after softmax, and a sequence without a single token stays finite, which it would not with infinity.
MASKED = -6e4


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    causal: bool = False,
    traced: bool = False,
) -> Tensor:
    """Return for each query the mean of the values that it attends to, weighted by its attention.

    Args:
        query: (batch, heads, sequence, head_size).
        key: (batch, heads, keys, head_size).
        value: (batch, heads, keys, head_size).
        seen: bool, true for a key that a query attends to, or a floating bias of the logits; of a shape that fits
            (batch, heads, sequence, keys). None: everything.
        dropout: probability that a weight is set to zero.
        scale: factor of the logits; None: 1 / sqrt(head_size).
        causal: a query attends to itself and what precedes it only; without `seen`.
        traced: see `relm.models.layers.TracedModule`.

    Returns:
        (batch, heads, sequence, head_size).
    """
    if traced:
        with torch.autocast(query.device.type, enabled=False):  # logits and weights keep the type of query and value
            return written_out(query, key, value, seen, dropout, scale, causal)
    given: dict[str, Any] = {} if scale is None else {"scale": scale}  # torch 2.0 has no such argument
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, is_causal=causal, **given)


def written_out(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, dropout: float, scale: float | None, causal: bool
) -> Tensor:
    """Compute `attention` in plain operations, with which a compiled step reads and writes less on a TPU (docs/tpu.md).

    Torch's own form reads all logits once more to find queries that attend to nothing, and keeps dropout's mask beside its
    input. Softmax is computed in float32 whatever the type. Logits are (..., keys, sequence) here, since the compiler would
    choose that layout, and copy any other into it.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = key @ (query * scale).transpose(-2, -1)
    if causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if seen is not None:
        seen = seen.transpose(-2, -1)
        logits = torch.where(seen, logits, MASKED) if seen.dtype == torch.bool else logits + seen
    weights = logits.softmax(-2, dtype=torch.float32).to(value.dtype)
    return F.dropout(weights, dropout, dropout > 0).transpose(-2, -1) @ value
