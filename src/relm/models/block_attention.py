"""Attention within documents without a mask of all pairs of positions: FlexAttention skips blocks of them.

Dong et al. 2024, "Flex Attention: A Programming Model for Generating Optimized Attention Kernels" (arXiv 2412.05496). The
memory of a mask grows with the square of the sequence; that of blocks is 128 * 128 times less. Imports on Python 3.8 with
torch 2.0; running it needs torch 2.6.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

import torch
from torch import Tensor

BLOCK = 128
"""Positions of a block, those of FlexAttention's own kernels."""


def document_blocks(document_ids: Tensor) -> Any:
    """Return the blocks of queries and keys that attention within documents computes, as `BlockMask`.

    A token attends to itself and to those before it in the same document. A block is skipped where no document of its queries
    can be one of its keys, and has no mask where all its tokens belong to one document.

    Args:
        document_ids: (batch, sequence), equal for tokens of one document, ascending.
    """
    from torch.nn.attention.flex_attention import BlockMask

    length = document_ids.shape[1]
    first, last = _first_and_last(document_ids)
    number = torch.arange(first.shape[1], device=first.device)
    before = number[:, None] > number[None, :]
    seen = (first[:, :, None] <= last[:, None, :]) & (first[:, None, :] <= last[:, :, None])
    alone = first == last
    whole = seen & before & alone[:, :, None] & alone[:, None, :]
    partial = seen & (before | (number[:, None] == number[None, :])) & ~whole

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[batch, query] == document_ids[batch, key])

    blocks = (*_in_order(partial), *_in_order(whole))
    return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=BLOCK, mask_mod=is_seen, seq_lengths=(length, length))


def _first_and_last(document_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest document of each block, (batch, blocks); the last block may be shorter."""
    missing = -document_ids.shape[1] % BLOCK
    padded = torch.cat([document_ids, document_ids[:, -1:].expand(-1, missing)], dim=1)
    by_block = padded.view(len(document_ids), -1, BLOCK)
    return by_block.amin(-1), by_block.amax(-1)


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the count of blocks of keys for each block of queries, and their numbers first, both (batch, 1, ...) int32.

    Args:
        blocks: (batch, blocks of queries, blocks of keys) bool.
    """
    numbers = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1)[:, None].to(torch.int32), numbers[:, None].to(torch.int32)


def block_attention(query: Tensor, key: Tensor, value: Tensor, blocks: Any, scale: float | None) -> Tensor:
    """Return `relm.models.attention.attention` at the blocks of `document_blocks`, without dropout."""
    from torch.nn.attention.flex_attention import flex_attention

    # Without a compiler torch computes all pairs, which only serves to check it.
    is_plain = query.device.type == "cpu" or torch.compiler.is_compiling()
    function: Any = flex_attention if is_plain else _compiled()
    mixed: Tensor = function(query, key, value, block_mask=blocks, scale=scale)
    return mixed


@lru_cache(maxsize=None)
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
