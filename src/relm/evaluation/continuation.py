"""Batches of texts that a causal language model continues, by `generate` of `transformers`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from relm.evaluation.execution import Execution
from relm.evaluation.foreign_models import ForeignCausalModel
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.logits_processors import logits_processors
from relm.evaluation.models import CausalModel, OwnCausalModel
from relm.evaluation.sampling import Sampling
from relm.evaluation.stop import Ending, Stop
from relm.evaluation.transformers_form import as_transformers

log = logging.getLogger(__name__)

# Texts on which `generate` for a model that is not relm's is compared once with the model itself.
PROBES = ([1, 2, 3], [4, 5])
PROBE_TOKENS = 3
# Tolerated share of the largest logit; a cache that forgets, or padding that is taken for text, is far beyond.
PROBE_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Continuation:
    """Ids that a model wrote after a prompt."""

    ids: list[int]
    """The ids, without the end of text or the id to stop at."""
    ended: Ending


@dataclass
class Timing:
    """Seconds per batch, measured until its last token is known on the host."""

    texts: list[int] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    """Tokens of the longest text of the batch, an end of text included."""
    first_seconds: list[float] = field(default_factory=list)
    """Seconds from the prompts to the first token; empty where a device writes whole texts."""
    seconds: list[float] = field(default_factory=list)
    """Seconds from the prompts to the last token."""

    def add(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], passes: int, first: float | None, whole: float
    ) -> None:
        """Add a batch; `first` is None where all of its tokens were known at the same time."""
        self.texts.append(len(prompts))
        self.prompt_tokens.append(sum(map(len, prompts)))
        self.tokens.append(sum(map(len, written)))
        self.passes.append(passes)
        if first is not None:
            self.first_seconds.append(first)
        self.seconds.append(whole)

    def describe(self) -> str:
        """Return latency and throughput as Graphcore's GPT-2 prints them, then the first token apart from later ones."""
        texts, seconds, passes = sum(self.texts), sum(self.seconds), sum(self.passes)
        latency = sum(n * taken for n, taken in zip(self.texts, self.seconds, strict=True)) / texts
        return (
            f"latency avg per sentence: {latency * 1e3:.3f} ms/sentence_({sum(self.tokens) / texts:g})\n"
            f"Per-token latency avg: {seconds / passes * 1e3:.3f} ms/token\n"
            f"Batch size: {max(self.texts)}; Input length {sum(self.prompt_tokens) / texts:g}; "
            f"Output length {sum(self.tokens) / texts:g}, throughput: {texts / seconds:.3f} samples/sec\n"
            f"{self._describe_first()}; {sum(self.tokens) / seconds:,.1f} tokens/s"
        )

    def _describe_first(self) -> str:
        """Return the time of the first token apart from that of the later ones."""
        if not self.first_seconds:
            return "Whole texts: one call of the device a batch"
        later, passes = sum(self.seconds) - sum(self.first_seconds), sum(self.passes) - len(self.seconds)
        a_token = f"{later / passes * 1e3:.3f} ms" if passes else "none"
        return f"First token: {sum(self.first_seconds) / len(self.seconds) * 1e3:.3f} ms a batch; each later one: {a_token}"


class Continuer(Protocol):
    """A model that continues a batch of texts until a criterion is met."""

    positions: int | None
    """Tokens of the longest text that it can read; None: any length."""
    pads: bool
    """True if texts of several lengths can be one batch."""
    at_once: bool
    """True if all tokens of a text are known at the same time."""

    def extend(
        self, texts: Sequence[Sequence[int]], tokens: int, processors: LogitsProcessorList, criterion: StoppingCriteria
    ) -> None:
        """Continue texts by up to `tokens` ids each.

        Args:
            texts: at least one id each, and short enough that all of these ids but the last fit into the positions.
            processors: they choose each next token: the likeliest of what they return is taken.
            criterion: it is called with the ids after each token.
        """


class TransformersContinuer:
    """A model of `transformers`, or relm's own as one; fulfils `Continuer`."""

    at_once = False

    def __init__(self, model: CausalModel, execution: Execution) -> None:
        self.positions = model.positions
        self._device, self._precision = execution.open(), execution.precision
        self._use_cache = self.pads = True
        if isinstance(model, OwnCausalModel):
            self._model = self._device.place(as_transformers(model.model))
            self._model.lm_head = _Float32Head(self._model.lm_head.weight)
        else:
            assert isinstance(model, ForeignCausalModel), "there is no other kind"
            self._model = model.model
        self._model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]  # the folder's decides nothing
        if isinstance(model, ForeignCausalModel):
            self._probe(model)

    def extend(
        self, texts: Sequence[Sequence[int]], tokens: int, processors: LogitsProcessorList, criterion: StoppingCriteria
    ) -> None:
        """Continue texts; see `Continuer`."""
        self._generate(texts, tokens, logits_processor=processors, stopping_criteria=StoppingCriteriaList([criterion]))

    def _generate(self, texts: Sequence[Sequence[int]], tokens: int, **options: Any) -> Any:
        width = max(map(len, texts))
        padding = [width - len(text) for text in texts]
        ids = torch.tensor([[0] * count + list(text) for count, text in zip(padding, texts, strict=True)])
        mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long()
        given = self._device.feed({"input_ids": ids, "attention_mask": mask})
        settings = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0, "use_cache": self._use_cache}
        with self._device.autocast(self._precision):
            return self._model.generate(**given, **settings, **options)

    def _probe(self, model: ForeignCausalModel) -> None:
        """Turn padding and cache off if they change what the model computes."""
        self.pads = self._agrees(model, PROBES)
        self._use_cache = self.pads or all(self._agrees(model, [probe]) for probe in PROBES)
        if not self._use_cache:
            log.warning(
                "%s: logits with its cache differ from those without; each token takes a pass over those before", model.folder
            )
        elif not self.pads:
            log.warning("%s: padding changes the model's logits; texts are written one by one", model.folder)

    def _agrees(self, model: CausalModel, texts: Sequence[Sequence[int]]) -> bool:
        """Return whether `generate`, with padding and cache, computes what the model computes from each text alone."""
        texts = [[token % model.vocabulary_size for token in text] for text in texts]
        if model.positions is not None and model.positions < max(map(len, texts)) + PROBE_TOKENS:
            return False
        try:
            found = self._generate(texts, PROBE_TOKENS, output_logits=True, return_dict_in_generate=True)
            return all(self._equal(model, found, row, len(text)) for row, text in enumerate(texts))
        except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return False

    def _equal(self, model: CausalModel, found: Any, row: int, length: int) -> bool:
        read = found.sequences[row, -length - PROBE_TOKENS : -1].cpu()
        with torch.inference_mode():
            expected = model.head(model.hidden(read[None])[0, length - 1 :])
        distance = (torch.stack([logits[row] for logits in found.logits]) - expected).abs().max()
        return bool(distance <= PROBE_TOLERANCE[self._precision] * expected.abs().max())


class WindowContinuer:
    """A model on IPUs, each of whose calls is a pass over the whole text, for one token; fulfils `Continuer`."""

    pads, at_once = True, False

    def __init__(self, model: IpuCausalModel) -> None:
        self.positions: int | None = model.positions
        self._model = model

    def compile(self, texts: Sequence[Sequence[int]], tokens: int) -> None:
        """Run a new program once, if texts with `tokens` more ids need one, so that the time of compiling it is not theirs."""
        longest = max(map(len, texts)) + tokens - 1
        longest = min(longest, self.positions or longest)
        if longest > self._model.length:
            self._model.hidden(torch.zeros(len(texts), longest, dtype=torch.int64))

    def extend(
        self, texts: Sequence[Sequence[int]], tokens: int, processors: LogitsProcessorList, criterion: StoppingCriteria
    ) -> None:
        """Continue texts; see `Continuer`."""
        ends = torch.tensor([len(text) - 1 for text in texts])
        rows = torch.arange(len(texts))
        ids = torch.zeros(len(texts), int(ends.max()) + tokens, dtype=torch.int64)  # the last token is not read
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        for _ in range(tokens):
            logits = self._model.head(self._model.hidden(ids)[rows, ends])
            chosen = processors(ids, logits).argmax(-1)  # type: ignore[arg-type]
            if bool(criterion(chosen[:, None], logits).all()):
                return
            ends = (ends + 1).clamp(max=ids.shape[1] - 1)
            ids[rows, ends] = chosen


class _Float32Head(nn.Module):
    """A head that computes in float32 whatever the precision of the layers before it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, (..., hidden) -> (..., vocabulary)."""
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), self.weight)


def continuations(
    continuer: Continuer,
    prompts: Sequence[Sequence[int]],
    length: int,
    sampling: Sampling,
    streams: Sequence[torch.Generator],
    stop: Stop | None = None,
    timing: Timing | None = None,
) -> list[Continuation]:
    """Return up to `length` ids after each prompt, all prompts in one batch.

    A model sees as many of the newest ids as it has positions. Once a text is longer, each token takes a pass over that window.
    Texts that have ended leave the batch as soon as they are half of it.

    Args:
        prompts: each at least one id.
        length: at least 1.
        streams: the random generator of each text.
        stop: the rule that ends a text before its length; None: nothing does.
        timing: the measured seconds are added to it.

    Raises:
        RelmError: logits are not finite.
    """
    begun, progress, positions = perf_counter(), _Progress(prompts, stop), continuer.positions
    while progress.tokens < length and (rows := progress.next_rows()):
        texts = [progress.texts[row] for row in rows]
        seen = texts if positions is None else [text[-positions:] for text in texts]
        left = length - progress.tokens
        within = left if positions is None else min(left, positions - max(map(len, seen)) + 1)
        continuer.extend(seen, within, logits_processors(sampling, texts, [streams[row] for row in rows]), progress)
    if timing is not None:
        first = None if continuer.at_once else progress.first - begun
        timing.add(prompts, progress.written(), progress.tokens, first, perf_counter() - begun)
    return [Continuation(ids, ended or "length") for ids, ended in zip(progress.written(), progress.ended, strict=True)]


class _Progress(StoppingCriteria):
    """The texts of a batch so far, and which have ended; a call of `generate` ends once half of its texts have."""

    def __init__(self, prompts: Sequence[Sequence[int]], stop: Stop | None) -> None:
        self._prompts, self._stop = prompts, stop
        self.texts = [list(prompt) for prompt in prompts]
        self.ended: list[Ending | None] = [None] * len(prompts)
        self.tokens = 0
        """Tokens of the longest text, an end of text included."""
        self.first = 0.0
        """The time at which the first token was known on the host."""
        self._rows: list[int] = []

    def next_rows(self) -> list[int]:
        """Return the indices of the texts that have not ended, which the next call is given."""
        self._rows = self._unfinished(range(len(self.texts)))
        return self._rows

    def written(self) -> list[list[int]]:
        """Return the ids after each prompt."""
        return [text[len(prompt) :] for text, prompt in zip(self.texts, self._prompts, strict=True)]

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        """Take the newest token of each text, and return True for all, (batch,) bool, if the call ends."""
        tokens = input_ids[:, -1].tolist()
        self.first = self.first or perf_counter()
        self.tokens += 1
        for row, token in zip(self._rows, tokens, strict=True):
            if self.ended[row] is None:
                self.ended[row] = self._take(row, token)
        ends = 2 * len(self._unfinished(self._rows)) <= len(self._rows)
        return torch.full((len(tokens),), ends, device=input_ids.device)

    def _unfinished(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if self.ended[row] is None]

    def _take(self, row: int, token: int) -> Ending | None:
        if self._stop is not None and (ending := self._stop.ending(token)) is not None:
            return ending
        prompt, text = self._prompts[row], self.texts[row]
        text.append(token)
        return "stop" if self._stop is not None and self._stop.reached(prompt, text[len(prompt) :]) else None
