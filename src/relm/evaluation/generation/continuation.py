"""Continuation of batches of texts by a causal language model, with `generate` of `transformers`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import Execution
from relm.evaluation.foreign_models import ForeignCausalModel
from relm.evaluation.generation.sampling import Sampling, logits_processors
from relm.evaluation.generation.stop import Stop
from relm.evaluation.models import OwnDecoder
from relm.evaluation.transformers_form import as_transformers

Texts = Sequence[Sequence[int]]


class Continuer:
    """A model that continues a batch of texts."""

    pads = True
    """True if texts of several lengths can be one batch."""

    def prepare(self, texts: Texts, tokens: int, sampling: Sampling) -> None:
        """Do work that later batches of this shape share, so that its time does not count; by default nothing."""

    def write(
        self, texts: Texts, tokens: int, sampling: Sampling, streams: Sequence[torch.Generator], stop: Stop
    ) -> list[list[int]]:
        """Return `tokens` ids after each text, which has at least one id, or fewer if all texts have ended.

        `streams` has a random generator for each text. Ids after an end mean nothing.
        """
        raise NotImplementedError


class TransformersContinuer(Continuer):
    """A model of `transformers`, or relm's own as one."""

    def __init__(self, model: CausalModel, execution: Execution) -> None:
        self.positions = model.positions
        self._device, self._precision = execution.open(), execution.precision
        if isinstance(model, OwnDecoder):
            self._model = self._device.place(as_transformers(model.model))
            self._model.lm_head = _Float32Head(self._model.lm_head.weight)
        else:
            assert isinstance(model, ForeignCausalModel), "IPUs have another class"
            self._model = model.model
        self._model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]  # the folder's decides nothing
        self.pads = not self._model._is_stateful  # a recurrent state takes padding for text

    def write(
        self, texts: Texts, tokens: int, sampling: Sampling, streams: Sequence[torch.Generator], stop: Stop
    ) -> list[list[int]]:
        options = {"logits_processor": logits_processors(sampling, streams), "eos_token_id": list(stop.endings) or None}
        return continue_windows(
            self.positions, texts, tokens, stop, lambda seen, most: self._generate(seen, most, stop, options)
        )

    def _generate(self, texts: Texts, tokens: int, stop: Stop, options: dict[str, Any]) -> list[list[int]]:
        width = max(map(len, texts))
        padding = [width - len(text) for text in texts]
        ids = torch.tensor([[0] * count + list(text) for count, text in zip(padding, texts, strict=True)])
        mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long()
        given = self._device.feed({"input_ids": ids, "attention_mask": mask})
        criteria = StoppingCriteriaList([_AtText(stop, texts)] if stop.text is not None else [])
        with self._device.autocast(self._precision):
            found = self._model.generate(
                **given, **options, max_new_tokens=tokens, do_sample=False, pad_token_id=0, stopping_criteria=criteria
            )
        written: list[list[int]] = found[:, width:].tolist()
        return written


class PassContinuer(Continuer):
    """A model of relm's that `transformers` lacks, which passes over the whole text for each token."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model

    @torch.inference_mode()
    def write(
        self, texts: Texts, tokens: int, sampling: Sampling, streams: Sequence[torch.Generator], stop: Stop
    ) -> list[list[int]]:
        return continue_by_passes(self._model, texts, tokens, sampling, streams, stop)


class _AtText(StoppingCriteria):
    """Ends texts at the text to stop at."""

    def __init__(self, stop: Stop, texts: Texts) -> None:
        self._stop, self._texts, self._width = stop, texts, max(map(len, texts))

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        rows = zip(self._texts, input_ids[:, self._width :].tolist(), strict=True)
        return torch.tensor([self._stop.is_reached(text, ids) for text, ids in rows], device=input_ids.device)


class _Float32Head(nn.Module):
    """A head that computes in float32 whatever the precision of the layers before it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), self.weight)


def continue_windows(
    positions: int | None, texts: Texts, tokens: int, stop: Stop, extend: Callable[[Texts, int], list[list[int]]]
) -> list[list[int]]:
    """Return ids after each text; see `Continuer.write`.

    A model sees the newest ids that its positions hold. Once a text is longer, each token takes a pass over that window.
    `extend` takes texts and the most ids to add, all but the last of which fit into the positions. It returns the same number
    of ids for each text, at least one.
    """
    written: list[list[int]] = [[] for _ in texts]
    while len(written[0]) < tokens and not all(map(stop.has_ended, texts, written)):
        whole = [[*text, *new] for text, new in zip(texts, written, strict=True)]
        seen = whole if positions is None else [text[-positions:] for text in whole]
        left = tokens - len(written[0])
        within = left if positions is None else min(left, positions - max(map(len, seen)) + 1)
        for new, more in zip(written, extend(seen, within), strict=True):
            new.extend(more)
    return written


def continue_by_passes(
    model: CausalModel, texts: Texts, tokens: int, sampling: Sampling, streams: Sequence[torch.Generator], stop: Stop
) -> list[list[int]]:
    """Return ids after each text, with a pass over all texts for each token; arguments as for `Continuer.write`."""
    processors = logits_processors(sampling, streams)

    def extend(seen: Texts, _: int) -> list[list[int]]:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in seen], batch_first=True)
        ends = torch.tensor([len(text) - 1 for text in seen])
        logits = model.head(model.hidden(ids)[torch.arange(len(seen)), ends]).cpu()
        chosen: list[list[int]] = processors(ids, logits).argmax(-1, keepdim=True).tolist()  # type: ignore[arg-type]
        return chosen

    return continue_windows(model.positions, texts, tokens, stop, extend)
