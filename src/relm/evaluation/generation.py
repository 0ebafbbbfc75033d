"""Texts that a language model writes, many at once: prompts in, texts out, with the time that they took."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor

from relm.errors import RelmError
from relm.evaluation.beginning import added_tokens
from relm.evaluation.decoders import Decoder, decoder_of
from relm.evaluation.models import Execution, OwnCausalModel, load_causal
from relm.evaluation.sampling import Sampling, chosen, random_stream
from relm.evaluation.special_tokens import special_tokens
from relm.examples.tokenizers import LoadedTokenizer, load_tokenizer

# Tokens before a stop that are decoded with it, for some decoders treat a text's first token in a way of its own.
STOP_MARGIN = 4

Ending = Literal["length", "end_of_text", "stop"]


@dataclass(frozen=True)
class Continuation:
    """Ids that a model wrote after a prompt."""

    ids: list[int]
    """Without the end of text, or the id to stop at."""
    ended: Ending
    """length: it was as long as was asked for; end_of_text: the model ended it; stop: what was to stop it came."""


@dataclass(frozen=True)
class Writing:
    """What is asked of a writer.

    Raises:
        RelmError: a setting is out of its range.
    """

    length: int = 128
    """Tokens at most after each prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: str | None = None
    """Where a text ends, beside the tokenizer's end of text: a text, or the name of a special token. It is left out."""
    seed: int = 0
    """With a prompt's number, of its random numbers."""
    batch_size: int = 8
    """Prompts at once, which changes texts by rounding at most."""

    def __post_init__(self) -> None:
        for name in ("length", "batch_size"):
            if getattr(self, name) < 1:
                raise RelmError(f"{name} is {getattr(self, name)}; give a whole number from 1 on")
        if self.stop == "":
            raise RelmError("stop is an empty text, at which every text would end at once; give one, or leave it out")


@dataclass(frozen=True)
class Prompt:
    """The beginning of a text, and the ids that the model is given of it, at least one."""

    text: str
    ids: list[int]


@dataclass(frozen=True)
class Written:
    """A text."""

    prompt: str
    text: str
    """The prompt as it is, and what the model wrote after it."""
    prompt_tokens: int
    tokens: int
    """That the model wrote; where it stopped at a text, those of that text included."""
    ended: Ending


@dataclass
class Timing:
    """Seconds, each batch apart: they end when its last token is known on the host."""

    texts: list[int] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    """How many tokens the longest text of the batch took, an end of text included."""
    first_seconds: list[float] = field(default_factory=list)
    """From the prompts to the first token."""
    seconds: list[float] = field(default_factory=list)
    """From the prompts to the last token."""

    def add(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], passes: int, first: float, all_of_it: float
    ) -> None:
        """Add a batch."""
        self.texts.append(len(prompts))
        self.prompt_tokens.append(sum(map(len, prompts)))
        self.tokens.append(sum(map(len, written)))
        self.passes.append(passes)
        self.first_seconds.append(first)
        self.seconds.append(all_of_it)

    def in_words(self) -> str:
        """Latency and throughput in the words of Graphcore's GPT-2, and then the first token apart from those after it."""
        texts, seconds, passes = sum(self.texts), sum(self.seconds), sum(self.passes)
        latency = sum(n * taken for n, taken in zip(self.texts, self.seconds, strict=True)) / texts
        later = seconds - sum(self.first_seconds)
        a_token = f"{later / (passes - len(self.seconds)) * 1e3:.3f} ms" if passes > len(self.seconds) else "none"
        return (
            f"latency avg per sentence: {latency * 1e3:.3f} ms/sentence_({sum(self.tokens) / texts:g})\n"
            f"Per-token latency avg: {seconds / passes * 1e3:.3f} ms/token\n"
            f"Batch size: {max(self.texts)}; Input length {sum(self.prompt_tokens) / texts:g}; "
            f"Output length {sum(self.tokens) / texts:g}, throughput: {texts / seconds:.3f} samples/sec\n"
            f"First token: {sum(self.first_seconds) / len(self.seconds) * 1e3:.3f} ms a batch; each later one: {a_token}; "
            f"{sum(self.tokens) / seconds:,.1f} tokens/s"
        )


class Stop:
    """What ends a text before its length: the tokenizer's end of text always, and perhaps a text or token of one's choice."""

    def __init__(self, loaded: LoadedTokenizer, text: str | None, ends: Collection[int] | None = None) -> None:
        """Without a `text` nothing but an end of text ends one; a special token's name is that token.

        Args:
            ends: ids of the ends of text; None: the one that the tokenizer has by name.
        """
        special = {token.content: number for number, token in loaded.tokenizer.get_added_tokens_decoder().items()}
        self._tokenizer = loaded.tokenizer
        self.ends = {loaded.special.end_of_text} if ends is None else ends
        self.id = special.get(text) if text is not None else None
        self.text = None if self.id is not None else text
        self._tail = len((self.text or "").encode()) + STOP_MARGIN  # a token is a byte at least

    def ending(self, token: int) -> Ending | None:
        """How a token ends a text, if it does; it then is no part of it."""
        if self.id is not None and token == self.id:
            return "stop"
        return "end_of_text" if token in self.ends else None

    def reached(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether ids written after a prompt hold the text to stop at, which only the last of them can have completed."""
        if self.text is None or self.text not in self._tokenizer.decode(ids[-self._tail :], skip_special_tokens=False):
            return False
        return self.text in self.decoded(prompt, ids)

    def cut(self, text: str) -> str:
        """A text without what to stop at and all after it."""
        return text if self.text is None else text.partition(self.text)[0]

    def decoded(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ids that were written after a prompt, with the space between them where the tokenizer has one."""
        before = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        whole = self._tokenizer.decode([*prompt, *ids], skip_special_tokens=False)
        if whole.startswith(before):
            return whole[len(before) :]
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def continuations(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    length: int,
    sampling: Sampling,
    streams: Sequence[torch.Generator],
    stop: Stop | None = None,
    timing: Timing | None = None,
) -> list[Continuation]:
    """Up to `length` ids after each prompt, all prompts in one batch; a text that has ended leaves the batch.

    Args:
        prompts: each at least one id.
        length: at least 1.
        streams: the random numbers of each text.
        stop: what ends a text before its length; None: nothing.
        timing: what this takes is added to it.

    Raises:
        RelmError: logits are not finite.
    """
    begun = perf_counter()
    batch = _Batch(prompts, stop)
    with torch.inference_mode():
        logits = decoder.begin(prompts, length)
        seen = _seen(prompts, logits) if sampling.repetition_penalty != 1 else None
        tokens = chosen(_finite(logits), seen, sampling, streams)
        first = perf_counter()
        for passes in range(1, length + 1):
            places = batch.take(tokens.tolist())
            if not places or passes == length:
                break
            if len(places) < len(tokens):
                decoder.keep(places)
                tokens, seen = tokens[places], None if seen is None else seen[places]
            if seen is not None:
                seen[torch.arange(len(places)), tokens.to(seen.device)] = True
            tokens = chosen(_finite(decoder.append(tokens)), seen, sampling, [streams[row] for row in batch.rows])
    if timing is not None:
        timing.add(prompts, batch.written, passes, first - begun, perf_counter() - begun)
    return [Continuation(ids, ended) for ids, ended in zip(batch.written, batch.ended, strict=True)]


class _Batch:
    """What was written after each prompt, and which texts go on."""

    def __init__(self, prompts: Sequence[Sequence[int]], stop: Stop | None) -> None:
        self._prompts, self._stop = prompts, stop
        self.written: list[list[int]] = [[] for _ in prompts]
        self.ended: list[Ending] = ["length"] * len(prompts)
        self.rows = list(range(len(prompts)))
        """Numbers of the texts that go on."""

    def take(self, tokens: Sequence[int]) -> list[int]:
        """Write a token of each text that went on; the places in `tokens` of those that still do."""
        endings = [self._ending(row, token) for row, token in zip(self.rows, tokens, strict=True)]
        for row, ending in zip(self.rows, endings, strict=True):
            self.ended[row] = ending or "length"
        places = [place for place, ending in enumerate(endings) if ending is None]
        self.rows = [self.rows[place] for place in places]
        return places

    def _ending(self, row: int, token: int) -> Ending | None:
        if self._stop is not None and (ending := self._stop.ending(token)) is not None:
            return ending
        self.written[row].append(token)
        stopped = self._stop is not None and self._stop.reached(self._prompts[row], self.written[row])
        return "stop" if stopped else None


def _seen(prompts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """(batch, vocabulary) bool, which ids each prompt has."""
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        seen[row, list(prompt)] = True
    return seen.to(logits.device)


def _finite(logits: Tensor) -> Tensor:
    """Some models have minus infinity for ids that no token has, so only the largest is looked at."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise RelmError("the model's logits are not finite: training diverged; lower the learning rate and train again")
    return logits


class Writer:
    """A model with its tokenizer, ready to write."""

    def __init__(self, model_folder: Path, tokenizer: Path, execution: Execution | None = None) -> None:
        """Load both.

        Raises:
            RelmError: one of them cannot be read, or they do not belong together.
        """
        execution = execution or Execution()
        self.loaded = load_tokenizer(tokenizer)
        self.special = special_tokens(self.loaded, model_folder)
        self.model = load_causal(model_folder, self.loaded.vocabulary_size, execution)
        self.decoder = decoder_of(self.model, execution)
        self.begins = () if isinstance(self.model, OwnCausalModel) else added_tokens(self.loaded)
        """Ids that every prompt begins with: what the tokenizer puts before a text, but for relm's own models."""

    def prompt(self, text: str) -> Prompt:
        """A prompt: as it stands, as relm's own models are trained; of others after what their tokenizer begins a text with.

        An empty one is `beginning`, for a model has to be given something.

        Raises:
            RelmError: as of `beginning`.
        """
        ids = self.loaded.tokenizer.encode(text, add_special_tokens=False).ids
        return Prompt(text, [*self.begins, *ids] or self.beginning())

    def beginning(self) -> list[int]:
        """Return what stood before a document in training.

        It is the token that begins a text; where the folder names none, the one that ends it; and where the tokenizer has
        neither, the end of a line.

        Raises:
            RelmError: it has no line end either.
        """
        first = self.special.eos if self.special.bos is None else self.special.bos
        begin = self.loaded.tokenizer.encode("\n", add_special_tokens=False).ids if first is None else [first]
        if not begin:
            raise RelmError(f"{self.loaded.path}: an empty prompt is no token in it, and it has no end of text; give a prompt")
        return begin

    def texts(
        self, prompts: Sequence[Prompt], writing: Writing, first_place: int = 0, timing: Timing | None = None
    ) -> Iterator[Written]:
        """Texts in the order of the prompts, as batches of them are done.

        Args:
            first_place: the number of the first prompt: a text's random numbers follow from the seed and its number.
            timing: what each batch takes is added to it.
        """
        stop, size = Stop(self.loaded, writing.stop, self.special.ends), writing.batch_size
        for first in range(0, len(prompts), size):
            group = prompts[first : first + size]
            ids = [prompt.ids for prompt in group]
            streams = [random_stream(writing.seed, first_place + first + place) for place in range(len(group))]
            found = continuations(self.decoder, ids, writing.length, writing.sampling, streams, stop, timing)
            for prompt, new in zip(group, found, strict=True):
                text = stop.decoded(prompt.ids, new.ids)
                text = stop.cut(text) if new.ended == "stop" else text
                yield Written(prompt.text, prompt.text + text, len(prompt.ids), len(new.ids), new.ended)
