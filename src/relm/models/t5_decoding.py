"""Writing with a T5, one token of each row after the other, without computing anything twice.

The decoder sees what it wrote so far through keys and values, which are kept; those of the source are computed once. What comes
out are the logits of `T5.decoded`, to rounding. Imports on Python 3.8 with torch 2.0, as all of `relm.models`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.t5 import T5
from relm.models.t5_attention import relative_buckets

# Places for keys and values at first; twice as many whenever they are full.
FIRST_PLACES = 16


class Decoding:
    """A target being written for each row of a batch of sources, by a model in evaluation mode.

    Keys and values take, for each row and layer, twice the width of attention for each token of the source and of the target.
    """

    def __init__(self, model: T5, input_ids: Tensor, attention_mask: Tensor | None = None) -> None:
        """Read the sources.

        Args:
            input_ids: (batch, source) int64.
            attention_mask: (batch, source), true for a token and false for padding; None: all are tokens.
        """
        source = model.encoded(input_ids, attention_mask)
        self.model = model
        self.written = 0
        """Tokens that the model was given, of each row; the first one is the start token."""
        self._source_addend = model.source_addend(attention_mask)
        self._layers = [_Layer(block, source) for block in model.decoder.block]
        self._places = 0
        self._by_distance = source.new_empty(0)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Logits of the token after these.

        Args:
            tokens: (batch,) int64, the newest of each row: at first `decoder_start_token_id`.

        Returns:
            (batch, vocabulary).
        """
        if self.written == self._places:
            self._places = max(FIRST_PLACES, 2 * self._places)
            self._by_distance = self._distances(tokens.device)
        addend = self._by_distance[..., self._places - 1 - self.written :]
        x = self.model.shared(tokens)[:, None]
        for layer in self._layers:
            x = layer.passed(x, addend, self._source_addend, self.written, self._places)
        self.written += 1
        return self.model.head(self.model.decoder.final_layer_norm(x))[:, 0]

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows alone.

        Args:
            rows: (kept,) int64, their numbers in the batch as it is now.
        """
        if self._source_addend is not None:
            self._source_addend = self._source_addend[rows]
        for layer in self._layers:
            layer.keep(rows)

    def _distances(self, device: torch.device) -> Tensor:
        """What distance adds to the logits, the farthest first and the token itself last: (1, heads, 1, places)."""
        first: Any = self.model.decoder.block[0]
        table = first.layer[0].SelfAttention.relative_attention_bias.weight
        config = self.model.config
        buckets = relative_buckets(
            self._places, 1, config.relative_attention_buckets, config.relative_attention_distance,
            both_ways=False, device=device,
        )  # fmt: skip
        return F.embedding(buckets.flip(0), table).permute(2, 1, 0)[None]


class _Layer:
    """One layer of the decoder, and the keys and values that it has seen."""

    def __init__(self, block: Any, source: Tensor) -> None:
        self.own, self.cross, self.feed_forward = block.layer
        attention = self.cross.EncDecAttention
        self.source_keys, self.source_values = attention.keys(source), attention.values(source)
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def passed(self, x: Tensor, addend: Tensor, source_addend: Tensor | None, place: int, places: int) -> Tensor:
        """(batch, 1, hidden) -> the same shape, the token at `place` written down beside those before it."""
        attention, normalised = self.own.SelfAttention, self.own.layer_norm(x)
        self.keys = _with(self.keys, attention.keys(normalised), place, places)
        self.values = _with(self.values, attention.values(normalised), place, places)
        seen = slice(place + 1)
        x = x + attention.mixed(attention.queries(normalised), self.keys[:, :, seen], self.values[:, :, seen], addend)
        attention = self.cross.EncDecAttention
        query = attention.queries(self.cross.layer_norm(x))
        x = x + attention.mixed(query, self.source_keys, self.source_values, source_addend)
        output: Tensor = self.feed_forward(x)
        return output

    def keep(self, rows: Tensor) -> None:
        """Forget all other rows."""
        self.source_keys, self.source_values = self.source_keys[rows], self.source_values[rows]
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]


def _with(kept: Tensor | None, new: Tensor, place: int, places: int) -> Tensor:
    """`kept`, (batch, heads, places, head_size), with `new`, (batch, heads, 1, head_size), at its place."""
    if kept is None or kept.shape[2] < places:
        larger = new.new_empty(new.shape[0], new.shape[1], places, new.shape[3])
        if kept is not None:
            larger[:, :, :place] = kept[:, :, :place]
        kept = larger
    kept[:, :, place] = new[:, :, 0]
    return kept
