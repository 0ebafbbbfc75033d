"""Decoding with a cache of keys and values: a decoder reads one token at a time, and its shapes never change.

A device that compiles a program for fixed shapes can run it as the body of a loop. Logits are those of the pass over the whole
text but for rounding.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.attention import MASKED, attention
from relm.models.decoder import Decoder
from relm.models.layers import rotated

Remember = Callable[[int, Tensor, Tensor], "tuple[Tensor, Tensor]"]
"""Function (layer, keys, values of the tokens that are read) -> keys and values that they may attend to."""


class Cache(NamedTuple):
    """Keys and values of the tokens that a model has read, each (layers, batch, key_value_heads, positions, head_size)."""

    keys: Tensor
    values: Tensor


def read_prompts(model: Decoder, input_ids: Tensor, positions: int) -> tuple[Tensor, Cache]:
    """Read the beginnings of texts, (batch, sequence) int64, in one pass.

    A shorter text is padded at its end, with any id: `decode_token` overwrites the padding's keys and values before a token can
    attend to them. Return the head's input, (batch, sequence, hidden), and the cache of `positions`, zero where nothing has
    been read.
    """
    keys: list[Tensor] = []
    values: list[Tensor] = []
    unread = (0, 0, 0, positions - input_ids.shape[1])

    def remember(number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys.append(F.pad(key, unread))
        values.append(F.pad(value, unread))
        return key, value

    x = model.transformer.with_positions(model.transformer.wte(input_ids))
    hidden = _through_layers(model, x, model.transformer.rotation(x), None, remember)
    return hidden, Cache(torch.stack(keys), torch.stack(values))


def decode_token(model: Decoder, token_ids: Tensor, places: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    """Read the next token of each text, (batch,) int64, at its position `places`, (batch,) int64, which may differ.

    What the cache has at `places` and beyond decides nothing. Return the head's input, (batch, hidden), and the cache with this
    token.
    """
    positions = torch.arange(cache.keys.shape[3], device=token_ids.device)
    written = (positions == places[:, None])[:, None, :, None]
    bias = (positions > places[:, None])[:, None, None, :].to(cache.keys.dtype) * MASKED
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def remember(number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys.append(torch.where(written, key, cache.keys[number]))
        values.append(torch.where(written, value, cache.values[number]))
        return keys[-1], values[-1]

    x, rotation = _embed(model, token_ids, places)
    hidden = _through_layers(model, x, rotation, bias, remember)
    return hidden[:, 0], Cache(torch.stack(keys), torch.stack(values))


def _embed(model: Decoder, token_ids: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the first layer's input, (batch, 1, hidden), and the angles of its positions, if they are not learnt."""
    transformer = model.transformer
    x = transformer.wte(token_ids)
    if transformer.wpe is not None:
        return transformer.normalised(x + transformer.wpe(places))[:, None], None
    assert transformer.rotary_base is not None, "positions that are not learnt are angles"
    angles = transformer.angles(places[:, None, None], transformer.head_size, transformer.rotary_base)
    return transformer.normalised(x)[:, None], angles


def _through_layers(model: Decoder, x: Tensor, rotation: Tensor | None, bias: Tensor | None, remember: Remember) -> Tensor:
    """Return the head's input, (batch, sequence, hidden) -> the same shape.

    Without `rotation`, learnt positions are in `x`; without a bias of the logits, attention is causal within the sequence.
    `remember` chooses keys and values.
    """
    blocks: Iterable[Any] = model.transformer.h
    for number, block in enumerate(blocks):
        query, key, value = block.attn.parts(block.ln_1(x))
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        keys, values = (block.attn.repeated(each) for each in remember(number, key, value))
        x = x + block.attn.joined(attention(query, keys, values, bias, scale=block.attn.scale, causal=bias is None))
        x = x + block.mlp(block.ln_2(x))
    hidden: Tensor = model.transformer.ln_f(x)
    return hidden
