"""Models that go on with a batch of texts, token by token, without reading again what they have read.

What a decoder gives is what the model gives for the whole text, or, of a text longer than the model's positions, for the newest
tokens that fit.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from relm.evaluation.models import CausalModel, Execution, ForeignCausalModel, OwnCausalModel, SelectiveModel
from relm.models.gpt2_cache import Gpt2Cache

log = logging.getLogger(__name__)

# Texts on which the cache of a model of `transformers` is compared with the model without it, once.
PROBES = ([1, 2, 3], [4, 5])
# Of the largest logit; a cache that forgets, or takes padding for text, is far beyond.
PROBE_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


class Decoder(Protocol):
    """A language model in the middle of some texts."""

    def begin(self, texts: Sequence[Sequence[int]], length: int) -> Tensor:
        """Read texts of at least one id, which will grow by up to `length`.

        Returns:
            (batch, vocabulary) float32 on the device: logits of the token after each text.
        """

    def append(self, tokens: Tensor) -> Tensor:
        """Read one more token of each text, (batch,) int64 on the host; logits as of `begin`."""

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these, given by their numbers, which rise; the others are renumbered."""


class OwnDecoder:
    """A GPT-2 of relm's own, for texts within its positions; fulfils `Decoder`."""

    def __init__(self, model: OwnCausalModel, execution: Execution) -> None:
        self._model, self._device, self._precision = model, execution.open(), execution.precision

    def begin(self, texts: Sequence[Sequence[int]], length: int) -> Tensor:
        """Logits after texts."""
        lengths = [len(text) for text in texts]
        capacity = min(max(lengths) + length, self._model.model.config.positions)
        with self._device.autocast(self._precision):
            self._cache = Gpt2Cache(self._model.model, self._placed(_padded(texts)), lengths, capacity)
        return self._model.head(self._cache.hidden)

    def append(self, tokens: Tensor) -> Tensor:
        """Logits after one more token."""
        with self._device.autocast(self._precision):
            hidden = self._cache.append(self._placed(tokens))
        return self._model.head(hidden)

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these."""
        self._cache.keep(self._placed(torch.tensor(rows)))

    def _placed(self, ids: Tensor) -> Tensor:
        return self._device.feed({"ids": ids})["ids"]


class ForeignDecoder:
    """A model of `transformers` with its own cache, texts padded at their beginnings; fulfils `Decoder`."""

    def __init__(self, model: ForeignCausalModel, execution: Execution) -> None:
        self._model: Any = model.model
        self._device, self._precision = execution.open(), execution.precision
        self._arguments = set(inspect.signature(self._model.forward).parameters)

    def begin(self, texts: Sequence[Sequence[int]], length: int) -> Tensor:
        """Logits after texts."""
        self._cache: Any = None
        self._lengths = torch.tensor([len(text) for text in texts])
        width = int(self._lengths.max())
        ids = torch.tensor([[0] * (width - len(text)) + list(text) for text in texts])
        self._seen = torch.arange(width) >= width - self._lengths[:, None]
        return self._logits(ids, (self._seen.cumsum(-1) - 1).clamp(min=0))

    def append(self, tokens: Tensor) -> Tensor:
        """Logits after one more token."""
        self._seen = torch.cat([self._seen, torch.ones(len(tokens), 1, dtype=torch.bool)], dim=1)
        self._lengths = self._lengths + 1
        return self._logits(tokens[:, None], self._lengths[:, None] - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these."""
        kept = torch.tensor(rows)
        self._lengths, self._seen = self._lengths[kept], self._seen[kept]
        self._cache.batch_select_indices(self._device.feed({"rows": kept})["rows"])

    def _logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits after the last column of (batch, columns) ids at their positions."""
        given = {"input_ids": ids}
        if not bool(self._seen.all()):
            given["attention_mask"] = self._seen.long()
        if "position_ids" in self._arguments:
            given["position_ids"] = positions
        options: dict[str, Any] = {"use_cache": True, "past_key_values": self._cache}
        if "logits_to_keep" in self._arguments:
            options["logits_to_keep"] = 1
        with self._device.autocast(self._precision):
            found = self._model(**self._device.feed(given), **options)
        self._cache = found.past_key_values
        logits: Tensor = found.logits[:, -1].float()
        return logits


class WindowedDecoder:
    """A decoder for texts of any length: a cache while a text fits into the model's positions, all computed anew beyond.

    Beyond, each further token moves every token to another position, so that nothing kept is of use, and a token costs as much
    as a whole window. Without a cache every token does. Fulfils `Decoder`.
    """

    def __init__(self, cached: Decoder | None, model: CausalModel, batch_tokens: int) -> None:
        self._cached, self._model, self._batch_tokens = cached, model, batch_tokens
        self._texts: list[list[int]] = []
        self._within: list[int] = []
        """Numbers of the texts that the cached decoder has, in its order."""

    def begin(self, texts: Sequence[Sequence[int]], length: int) -> Tensor:
        """Logits after texts."""
        self._texts = [list(text) for text in texts]
        self._within = [row for row, text in enumerate(self._texts) if self._fits(text)]
        if self._cached is None or not self._within:
            return self._joined(None)
        return self._joined(self._cached.begin([self._texts[row] for row in self._within], length))

    def append(self, tokens: Tensor) -> Tensor:
        """Logits after one more token."""
        for text, token in zip(self._texts, tokens.tolist(), strict=True):
            text.append(token)
        self._keep_within([row for row in self._within if self._fits(self._texts[row])])
        if self._cached is None or not self._within:
            return self._joined(None)
        return self._joined(self._cached.append(tokens[self._within]))

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these."""
        self._keep_within([row for row in self._within if row in set(rows)])
        self._within = [rows.index(row) for row in self._within]
        self._texts = [self._texts[row] for row in rows]

    def _fits(self, text: Sequence[int]) -> bool:
        positions = self._model.positions
        return self._cached is not None and (positions is None or len(text) <= positions)

    def _keep_within(self, rows: list[int]) -> None:
        if self._cached is not None and rows and len(rows) < len(self._within):
            self._cached.keep([place for place, row in enumerate(self._within) if row in set(rows)])
        self._within = rows

    def _joined(self, cached: Tensor | None) -> Tensor:
        """Logits of all texts, those beside the cached ones computed anew."""
        beyond = sorted(set(range(len(self._texts))) - set(self._within))
        if not beyond and cached is not None:
            return cached
        others = newest_logits(self._model, [self._texts[row] for row in beyond], self._batch_tokens)
        if cached is None:
            return others
        logits = others.new_empty(len(self._texts), others.shape[-1])
        logits[self._within], logits[beyond] = cached, others
        return logits


def newest_logits(model: CausalModel, texts: Sequence[Sequence[int]], batch_tokens: int) -> Tensor:
    """Logits (batch, vocabulary) of the token after each text, of which the model sees as many of the newest ids as it can.

    Nothing is kept: this is what every decoder has to equal.
    """
    logits = []
    windows = [text if model.positions is None else text[-model.positions :] for text in texts]
    at_once = max(1, batch_tokens // max(len(window) for window in windows))
    for first in range(0, len(windows), at_once):
        group = windows[first : first + at_once]
        rows, last = torch.arange(len(group)), torch.tensor([len(window) - 1 for window in group])
        if isinstance(model, SelectiveModel):
            hidden = model.hidden_at(_padded(group), rows, last)
        else:
            hidden = model.hidden(_padded(group))[rows, last]
        logits.append(model.head(hidden))
    return torch.cat(logits)


def decoder_of(model: CausalModel, execution: Execution) -> Decoder:
    """A decoder for texts of any length, with a cache where the model has one that is right."""
    cached: Decoder | None = None
    if isinstance(model, OwnCausalModel):
        cached = OwnDecoder(model, execution)
    elif isinstance(model, ForeignCausalModel) and _caches_rightly(model, execution):
        cached = ForeignDecoder(model, execution)
    if cached is None:
        log.warning("%s: its cache does not give what the model gives; each token takes a pass over those before", model.folder)
    return WindowedDecoder(cached, model, execution.batch_tokens)


def _caches_rightly(model: ForeignCausalModel, execution: Execution) -> bool:
    """Whether the cache gives what the model gives without, for a padded batch, a token more, and with a text taken out."""
    texts = [[token % model.vocabulary_size for token in text] for text in PROBES]
    if model.positions is not None and model.positions < len(texts[0]) + 2:
        return False
    decoder = ForeignDecoder(model, execution)
    with torch.inference_mode():
        try:
            same = _agree(decoder.begin(texts, 2), model, texts, execution)
            texts = [[*text, text[0]] for text in texts]
            same = same and _agree(decoder.append(torch.tensor([text[-1] for text in texts])), model, texts, execution)
            decoder.keep([1])
            texts = [[*texts[1], texts[1][1]]]
            return same and _agree(decoder.append(torch.tensor([texts[0][-1]])), model, texts, execution)
        except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return False


def _agree(found: Tensor, model: CausalModel, texts: Sequence[Sequence[int]], execution: Execution) -> bool:
    expected = newest_logits(model, texts, execution.batch_tokens)
    distance = (found - expected).abs().max()
    return bool(distance <= PROBE_TOLERANCE[execution.precision] * expected.abs().max())


def _padded(texts: Sequence[Sequence[int]]) -> Tensor:
    """(batch, longest) int64, each text at the beginning of its row."""
    width = max(len(text) for text in texts)
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
