"""T5's attention: logits are not scaled, and each gets a bias that depends on the distance between two tokens.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (arXiv 1910.10683),
section 2.1. Distances are put into buckets, exact for near tokens and wider and wider for far ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relm.models.attention import attention
from relm.models.layers import Linear, TracedModule, embedding
from relm.models.t5_configuration import T5Config


class Attention(TracedModule):
    """Attention over several heads, to the same sequence or to another one."""

    relative_attention_bias: nn.Embedding | None

    def __init__(self, config: T5Config, positions: bool) -> None:
        """Build the projections and, with `positions`, the table of position biases, which all layers of a stack share."""
        super().__init__()
        inner = config.heads * config.head_size
        self.heads = config.heads
        self.head_size = config.head_size
        self.dropout = config.dropout
        self.q = Linear(config.hidden_size, inner, bias=False)
        self.k = Linear(config.hidden_size, inner, bias=False)
        self.v = Linear(config.hidden_size, inner, bias=False)
        self.o = Linear(inner, config.hidden_size, bias=False)
        self.relative_attention_bias = embedding(config.relative_attention_buckets, config.heads) if positions else None

    def forward(self, x: Tensor, seen: Tensor, bias: Tensor | None) -> Tensor:
        """(batch, sequence, hidden) attending to `seen` (batch, keys, hidden) -> (batch, sequence, hidden)

        The bias of the logits is in a shape that broadcasts to (batch, heads, sequence, keys).
        """
        query, key, value = self._split(self.q(x)), self._split(self.k(seen)), self._split(self.v(seen))
        mask = None if bias is None else bias.to(query.dtype)
        dropout = self.dropout if self.training else 0.0
        mixed = attention(query, key, value, mask, dropout, scale=1.0, traced=self.traced)
        output: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, projected: Tensor) -> Tensor:
        """(batch, positions, inner) -> (batch, heads, positions, head_size)"""
        return projected.view(*projected.shape[:2], self.heads, self.head_size).transpose(1, 2)


def bucket_borders(buckets: int, distance: int) -> list[int]:
    """Return the first distance of each wider bucket except the first, which begins where the exact buckets end.

    Half of the buckets, e of them, hold one distance each. The other m grow as a geometric series from e to `distance`: the
    k-th begins at the least n with (n / e) ** m >= (distance / e) ** k. Integer arithmetic decides that, since the
    original's logarithm falls on either side of a border with the device's rounding.

    >>> bucket_borders(16, 128)
    [12, 16, 23, 32, 46, 64, 91]
    """
    exact = buckets // 2
    wide = buckets - exact
    return [
        next(n for n in range(exact, distance + 1) if n**wide * exact**k >= distance**k * exact**wide) for k in range(1, wide)
    ]


def relative_buckets(queries: int, keys: int, buckets: int, distance: int, both_ways: bool, device: torch.device) -> Tensor:
    """Return the bucket of each pair of a query and a key, (queries, keys) int64.

    The last bucket holds all distances from `distance` on. With `both_ways`, half of the buckets are for keys after the query,
    which otherwise share the query's bucket.
    """
    relative = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
    side = buckets // 2 if both_ways else buckets
    away = relative.abs() if both_ways else (-relative).clamp(min=0)
    bucket = away.clamp(max=side // 2)
    for border in bucket_borders(side, distance):
        bucket = bucket + (away >= border)
    return bucket + side * (relative > 0) if both_ways else bucket
