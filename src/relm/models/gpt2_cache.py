"""A GPT-2 that goes on with texts token by token: keys and values of what it has read are kept, not computed again.

What comes out is what `Gpt2.hidden` gives for the whole texts, by rounding. Positions are learnt, so a cache holds no more than
the model's positions: of a longer text each token has another position than before, and all has to be computed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.gpt2 import Attention, Block, Gpt2


class LayerCache:
    """Keys and values of one layer, in memory that is taken once: (batch, heads, capacity, hidden / heads)."""

    def __init__(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Begin with those of (batch, heads, length, hidden / heads)."""
        self.keys, self.values = _with_room(keys, capacity), _with_room(values, capacity)

    def append(self, keys: Tensor, values: Tensor, places: Tensor | int) -> None:
        """Write one token of each text, (batch, heads, 1, hidden / heads), at its place, or at one that all share."""
        for memory, new in ((self.keys, keys), (self.values, values)):
            if isinstance(places, int):
                memory[:, :, places] = new[:, :, 0]
            else:
                memory[torch.arange(len(new), device=new.device), :, places] = new[:, :, 0]

    def until(self, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `end` places."""
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, rows: Tensor) -> None:
        """Forget all texts but some."""
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)


def _with_room(initial: Tensor, capacity: int) -> Tensor:
    """Zeros where nothing is yet: a text shorter than others has such places masked, and zero times NaN would be NaN."""
    batch, heads, length, width = initial.shape
    memory = initial.new_zeros(batch, heads, capacity, width)
    memory[:, :, :length] = initial
    return memory


class Gpt2Cache:
    """What a GPT-2 remembers of a batch of texts."""

    hidden: Tensor
    """What the head reads to predict the token after each text, (batch, hidden)."""

    def __init__(self, model: Gpt2, input_ids: Tensor, lengths: list[int], capacity: int) -> None:
        """Read texts.

        Args:
            model: in evaluation mode.
            input_ids: (batch, sequence) int64 on the model's device, each text at the beginning of its row; what stands after
                it does not matter.
            lengths: of each text, at least 1.
            capacity: how long a text may become, at most ``model.config.positions``.

        Raises:
            ValueError: a text, or what it may become, is too long.
        """
        width, positions = input_ids.shape[1], model.config.positions
        if not width <= capacity <= positions:
            raise ValueError(f"texts of {width} tokens and room for {capacity}, but the model has {positions} positions")
        self._model, self._lengths, self._capacity = model, list(lengths), capacity
        self._layers: list[LayerCache] = []
        hidden = self._through(model.transformer.wte(input_ids) + model.transformer.wpe.weight[:width], self._read)
        last = torch.tensor(self._lengths, device=hidden.device) - 1
        self.hidden = hidden[torch.arange(len(last), device=hidden.device), last]

    def append(self, tokens: Tensor) -> Tensor:
        """Read one more token of each text, (batch,) int64 on the model's device; `hidden` after it.

        Raises:
            ValueError: a text is as long as there is room.
        """
        longest = max(self._lengths)
        if longest >= self._capacity:
            raise ValueError(f"a text of {longest} tokens cannot grow: there is room for {self._capacity}")
        places = torch.tensor(self._lengths, device=tokens.device)
        of_one_length = min(self._lengths) == longest
        mask = None if of_one_length else (torch.arange(longest + 1, device=places.device) <= places[:, None])[:, None, None]

        def attend(number: int, attention: Attention, x: Tensor) -> Tensor:
            query, key, value = attention.parts(x)
            self._layers[number].append(key, value, longest if of_one_length else places)
            keys, values = self._layers[number].until(longest + 1)
            return attention.joined(F.scaled_dot_product_attention(query, keys, values, attn_mask=mask))

        embedded = self._model.transformer.wte(tokens) + self._model.transformer.wpe(places)
        self.hidden = self._through(embedded[:, None], attend)[:, 0]
        self._lengths = [length + 1 for length in self._lengths]
        return self.hidden

    def keep(self, rows: Tensor) -> None:
        """Forget all texts but some, by their numbers, (rows,) int64 on the model's device."""
        self._lengths = [self._lengths[row] for row in rows.tolist()]
        for layer in self._layers:
            layer.keep(rows)

    def _read(self, number: int, attention: Attention, x: Tensor) -> Tensor:
        """Attention within texts, each place seeing those before it, so that nothing sees what stands after its text."""
        query, key, value = attention.parts(x)
        self._layers.append(LayerCache(key, value, self._capacity))
        return attention.joined(F.scaled_dot_product_attention(query, key, value, is_causal=True))

    def _through(self, x: Tensor, attend: Callable[[int, Attention, Tensor], Tensor]) -> Tensor:
        """Embedded tokens (batch, sequence, hidden) after all layers, with attention of the caller's."""
        for number, module in enumerate(self._model.transformer.h):
            block = cast(Block, module)
            x = x + attend(number, block.attn, block.ln_1(x))
            x = x + block.mlp(block.ln_2(x))
        normalised: Tensor = self._model.transformer.ln_f(x)
        return normalised
