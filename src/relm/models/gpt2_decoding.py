"""Decoding with a cache of keys and values: a GPT-2 reads one token at a time, and its shapes never change.

A device that compiles a program for fixed shapes can run it as the body of a loop. Logits are those of the pass over the whole
text but for rounding. Imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.attention import MASKED, attention
from relm.models.gpt2 import Gpt2

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Function (layer, query, key, value), each (batch, heads, sequence, head_size) -> the mixed values, of the same shape."""


class Cache(NamedTuple):
    """Keys and values of the tokens that a model has read, each (layers, batch, heads, positions, head_size)."""

    keys: Tensor
    values: Tensor


def read_prompts(model: Gpt2, input_ids: Tensor, positions: int) -> tuple[Tensor, Cache]:
    """Read the beginnings of texts in one pass.

    Args:
        input_ids: (batch, sequence) int64. A shorter text is padded at its end, with any id: `decode_token` overwrites the
            padding's keys and values before a token can attend to them.
        positions: positions of the cache, at least as many as the sequence has.

    Returns:
        The head's input, (batch, sequence, hidden), and the cache, zero where nothing has been read.
    """
    keys: list[Tensor] = []
    values: list[Tensor] = []
    unread = (0, 0, 0, positions - input_ids.shape[1])

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(F.pad(key, unread))
        values.append(F.pad(value, unread))
        return attention(query, key, value, causal=True)

    hidden = _through_layers(model, model.transformer.with_positions(model.transformer.wte(input_ids)), attend)
    return hidden, Cache(torch.stack(keys), torch.stack(values))


def decode_token(model: Gpt2, token_ids: Tensor, places: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    """Read the next token of each text.

    Args:
        token_ids: (batch,) int64.
        places: (batch,) int64, the token's position in its text, below the cache's positions. Texts may differ in it.
        cache: keys and values of the tokens before; what it has at `places` and beyond decides nothing.

    Returns:
        The head's input, (batch, hidden), and the cache with this token.
    """
    positions = torch.arange(cache.keys.shape[3], device=token_ids.device)
    written = (positions == places[:, None])[:, None, :, None]
    bias = (positions > places[:, None])[:, None, None, :].to(cache.keys.dtype) * MASKED
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(torch.where(written, key, cache.keys[number]))
        values.append(torch.where(written, value, cache.values[number]))
        return attention(query, keys[-1], values[-1], bias)

    embedded = model.transformer.wte(token_ids) + model.transformer.wpe(places)
    hidden = _through_layers(model, embedded[:, None], attend)
    return hidden[:, 0], Cache(torch.stack(keys), torch.stack(values))


def _through_layers(model: Gpt2, x: Tensor, attend: Attend) -> Tensor:
    """Return the head's input, (batch, sequence, hidden) -> the same shape, with another attention over keys and values."""
    for number, block in enumerate(model.transformer.h):
        query, key, value = block.attn.parts(block.ln_1(x))
        x = x + block.attn.joined(attend(number, query, key, value))
        x = x + block.mlp(block.ln_2(x))
    hidden: Tensor = model.transformer.ln_f(x)
    return hidden
