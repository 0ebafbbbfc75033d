"""Texts that a language model writes after prompts, and their time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from relm.errors import RelmError
from relm.evaluation.beginning import added_tokens
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.generation.continuation import Continuer, PassContinuer, TransformersContinuer
from relm.evaluation.generation.ipu_continuation import IpuContinuer
from relm.evaluation.generation.sampling import Sampling, random_stream
from relm.evaluation.generation.stop import Ending, Stop
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.models import OwnDecoder, load_causal
from relm.evaluation.special_tokens import special_tokens
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.models.gpt2 import Gpt2


@dataclass(frozen=True)
class Writing:
    """Settings of a writer."""

    length: int = 128
    """Most tokens after each prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: str | None = None
    """A text, or a special token's name, that ends a text as the tokenizer's end of text does, and is left out."""
    seed: int = 0
    """Seed that decides, with the number of a prompt, its random numbers."""
    batch_size: int = 8
    """Prompts in a batch; it changes texts by rounding at most."""


@dataclass(frozen=True)
class Prompt:
    """The beginning of a text, and its ids for the model, at least one."""

    text: str
    ids: list[int]


@dataclass(frozen=True)
class Written:
    """A text that a model wrote after a prompt."""

    prompt: str
    text: str
    """The unchanged prompt, and the model's text after it."""
    prompt_tokens: int
    tokens: int
    """Number of tokens that the model wrote, with those of the text to stop at."""
    ended: Ending


class BatchTime(NamedTuple):
    """Counts of a batch, and its seconds from the prompts to the last token on the host."""

    texts: int
    prompt_tokens: int
    tokens: int
    passes: int
    """Tokens of the longest text, with its end."""
    seconds: float


def describe_times(times: Sequence[BatchTime]) -> str:
    """Return latency and throughput as Graphcore's GPT-2 prints them, then tokens per second."""
    texts, prompt_tokens, tokens, passes, seconds = (sum(column) for column in zip(*times, strict=True))
    latency = sum(each.texts * each.seconds for each in times) / texts
    return (
        f"latency avg per sentence: {latency * 1e3:.3f} ms/sentence_({tokens / texts:g})\n"
        f"Per-token latency avg: {seconds / passes * 1e3:.3f} ms/token\n"
        f"Batch size: {max(each.texts for each in times)}; Input length {prompt_tokens / texts:g}; "
        f"Output length {tokens / texts:g}, throughput: {texts / seconds:.3f} samples/sec\n"
        f"{tokens / seconds:,.1f} tokens/s"
    )


class Writer:
    """A model with its tokenizer, ready to write."""

    def __init__(self, model_folder: Path, tokenizer: Path, execution: Execution = ON_THE_HOST) -> None:
        self.loaded = load_tokenizer(tokenizer)
        self.special = special_tokens(self.loaded, model_folder)
        self.model = load_causal(model_folder, self.loaded.vocabulary_size, execution)
        self.continuer: Continuer
        if isinstance(self.model, IpuCausalModel):
            self.continuer = IpuContinuer(self.model)
        elif isinstance(self.model, OwnDecoder) and not isinstance(self.model.model, Gpt2):
            self.continuer = PassContinuer(self.model)
        else:
            self.continuer = TransformersContinuer(self.model, execution)
        is_own = isinstance(self.model, OwnDecoder | IpuCausalModel)
        self.begins = () if is_own else added_tokens(self.loaded)
        """Ids that the tokenizer puts before every prompt, none for relm's models."""

    def prompt(self, text: str) -> Prompt:
        """Return the ids of a prompt after `begins`; an empty prompt becomes `beginning`, for a model needs at least one id."""
        ids = self.loaded.tokenizer.encode(text, add_special_tokens=False).ids
        return Prompt(text, [*self.begins, *ids] or self.beginning())

    def beginning(self) -> list[int]:
        """Return the ids before a document in training: the token that begins a text, or else ends one, or else a line end."""
        first = self.special.eos if self.special.bos is None else self.special.bos
        begin = self.loaded.tokenizer.encode("\n", add_special_tokens=False).ids if first is None else [first]
        if not begin:
            raise RelmError(
                f"{self.loaded.path}: has no token for an empty prompt: no bos, no end of text, no line end; give a prompt"
            )
        return begin

    def texts(
        self, prompts: Sequence[Prompt], writing: Writing, first_number: int = 0, times: list[BatchTime] | None = None
    ) -> Iterator[Written]:
        """Yield texts in the order of the prompts, batch by batch, and append each batch's time to `times`.

        The seed and the prompt's number, from `first_number` on, decide a text's random numbers.
        """
        stop, length, sampling = Stop(self.loaded, writing.stop, self.special.ends), writing.length, writing.sampling
        together = self.continuer.pads and sampling.repetition_penalty == 1  # `transformers` penalises the id of the padding
        size = writing.batch_size if together else 1
        for first in range(0, len(prompts), size):
            group = prompts[first : first + size]
            ids = [prompt.ids for prompt in group]
            streams = [random_stream(writing.seed, first_number + first + row) for row in range(len(group))]
            self.continuer.prepare(ids, length, sampling)
            begun = perf_counter()
            found = self.continuer.write(ids, length, sampling, streams, stop)
            seconds = perf_counter() - begun
            cuts = [stop.cut(prompt, new) for prompt, new in zip(ids, found, strict=True)]
            if times is not None:
                tokens = sum(cut.tokens for cut in cuts)
                times.append(BatchTime(len(ids), sum(map(len, ids)), tokens, len(found[0]), seconds))
            for prompt, cut in zip(group, cuts, strict=True):
                yield Written(prompt.text, prompt.text + cut.text, len(prompt.ids), cut.tokens, cut.ended)
