"""Attention over heads, by torch's own kernels or in plain operations for a compiler that fuses them.

Vaswani et al. 2017, "Attention Is All You Need": softmax(query @ key.T * scale) @ value, with dropout on the softmax.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# The bias of a logit that must not be attended to. Every floating type can represent it, softmax turns it into 0, and unlike
# infinity it keeps a sequence without a single token finite.
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

    Queries and the result are (batch, heads, sequence, head_size), keys and values (batch, heads, keys, head_size). `seen`
    broadcasts to (batch, heads, sequence, keys): bool, true for a key that a query attends to, or a floating bias of the
    logits; None: everything. `scale` is the factor of the logits; None: 1 / sqrt(head_size). With `causal`, which excludes
    `seen`, a query attends to itself and to what precedes it.
    """
    if traced:
        with torch.autocast(query.device.type, enabled=False):  # logits and weights keep the type of query and value
            return written_out(query, key, value, seen, dropout, scale, causal)
    given: dict[str, Any] = {} if scale is None else {"scale": scale}  # torch 2.0 has no such argument
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, is_causal=causal, **given)


def written_out(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, dropout: float, scale: float | None, causal: bool
) -> Tensor:
    """Compute `attention` in plain operations: a compiled step on a TPU then reads and writes less (docs/tpu.md).

    Torch's form reads all logits once more to find queries that attend to nothing, and keeps both dropout's mask and its input.
    Softmax is in float32 whatever the type. Logits are (..., keys, sequence): the compiler would copy any other layout into it.
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
