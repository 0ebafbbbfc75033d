"""Batches of texts that a language model writes after prompts, with the time that they took."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from relm.errors import RelmError
from relm.evaluation.beginning import added_tokens
from relm.evaluation.continuation import Continuer, Timing, TransformersContinuer, WindowContinuer, continuations
from relm.evaluation.execution import Execution
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.loop_continuer import LoopContinuer, find_obstacle, rule_of
from relm.evaluation.models import OwnCausalModel, load_causal
from relm.evaluation.sampling import Sampling, random_stream
from relm.evaluation.special_tokens import special_tokens
from relm.evaluation.stop import Ending, Stop
from relm.examples.tokenizers import load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Writing:
    """Settings of a writer.

    Raises:
        RelmError: a setting is out of its range.
    """

    length: int = 128
    """The most tokens after each prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: str | None = None
    """A text, or the name of a special token, that ends a text beside the tokenizer's end of text. It is left out."""
    seed: int = 0
    """Seed that decides, with the number of a prompt, its random numbers."""
    batch_size: int = 8
    """Prompts in a batch; it changes texts by rounding at most."""

    def __post_init__(self) -> None:
        for name in ("length", "batch_size"):
            if getattr(self, name) < 1:
                raise RelmError(f"{name} is {getattr(self, name)}; give a whole number from 1 on")
        if self.stop == "":
            raise RelmError(
                "stop is an empty text, at which every text would end at once; give a text with characters, or leave it out"
            )


@dataclass(frozen=True)
class Prompt:
    """The beginning of a text, and the ids that the model is given, at least one."""

    text: str
    ids: list[int]


@dataclass(frozen=True)
class Written:
    """A text that a model wrote after a prompt."""

    prompt: str
    text: str
    """The prompt unchanged, and the text that the model wrote after it."""
    prompt_tokens: int
    tokens: int
    """Count of tokens that the model wrote, those of the text to stop at included."""
    ended: Ending


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
        self.continuer: Continuer
        if isinstance(self.model, IpuCausalModel):
            self.continuer = WindowContinuer(self.model)
        else:
            self.continuer = TransformersContinuer(self.model, execution)
        is_own = isinstance(self.model, OwnCausalModel | IpuCausalModel)
        self.begins = () if is_own else added_tokens(self.loaded)
        """Ids that the tokenizer puts before every prompt; none for relm's own models."""

    def prompt(self, text: str) -> Prompt:
        """Return the ids of a prompt, after those that the tokenizer puts before a text unless the model is relm's own.

        An empty prompt becomes `beginning`, for a model needs at least one id.

        Raises:
            RelmError: as of `beginning`.
        """
        ids = self.loaded.tokenizer.encode(text, add_special_tokens=False).ids
        return Prompt(text, [*self.begins, *ids] or self.beginning())

    def beginning(self) -> list[int]:
        """Return the ids that stood before a document in training.

        These are the token that begins a text; if the folder names none, the one that ends a text; and if the tokenizer has
        neither, the end of a line.

        Raises:
            RelmError: it has no line end either.
        """
        first = self.special.eos if self.special.bos is None else self.special.bos
        begin = self.loaded.tokenizer.encode("\n", add_special_tokens=False).ids if first is None else [first]
        if not begin:
            raise RelmError(
                f"{self.loaded.path}: has no token for an empty prompt: no bos, no end of text, no line end; give a prompt"
            )
        return begin

    def texts(
        self, prompts: Sequence[Prompt], writing: Writing, first_number: int = 0, timing: Timing | None = None
    ) -> Iterator[Written]:
        """Yield texts in the order of the prompts, as batches of them are done.

        Args:
            first_number: number of the first prompt; the seed and the number of its prompt decide a text's random numbers.
            timing: the seconds of each batch are added to it.
        """
        stop = Stop(self.loaded, writing.stop, self.special.ends)
        size = writing.batch_size if self.continuer.pads else 1
        self._report_obstacle(prompts, writing)
        for first in range(0, len(prompts), size):
            group = prompts[first : first + size]
            ids = [prompt.ids for prompt in group]
            streams = [random_stream(writing.seed, first_number + first + row) for row in range(len(group))]
            continuer = self._continuer_of(ids, writing, streams)
            if isinstance(continuer, WindowContinuer | LoopContinuer):
                continuer.compile(ids, writing.length)
            found = continuations(continuer, ids, writing.length, writing.sampling, streams, stop=stop, timing=timing)
            for prompt, new in zip(group, found, strict=True):
                text = stop.decode(prompt.ids, new.ids)
                text = stop.cut(text) if new.ended == "stop" else text
                yield Written(prompt.text, prompt.text + text, len(prompt.ids), len(new.ids), new.ended)

    def _continuer_of(self, texts: Sequence[Sequence[int]], writing: Writing, streams: Sequence[torch.Generator]) -> Continuer:
        """Return what continues a batch: on one IPU a loop, where that can choose the tokens."""
        if not isinstance(self.model, IpuCausalModel) or self._obstacle(texts, writing) is not None:
            return self.continuer
        return LoopContinuer(self.model, rule_of(writing.sampling, self.model.vocabulary_size), streams)

    def _obstacle(self, texts: Sequence[Sequence[int]], writing: Writing) -> str | None:
        assert isinstance(self.model, IpuCausalModel), "other models need no loop"
        return find_obstacle(self.model, max(map(len, texts)) + writing.length, writing.sampling)

    def _report_obstacle(self, prompts: Sequence[Prompt], writing: Writing) -> None:
        """Log a line if some texts take a call of the IPU for each token."""
        if isinstance(self.model, IpuCausalModel) and (obstacle := self._obstacle([p.ids for p in prompts], writing)):
            log.warning("each token takes a call of the device and a pass over the whole text, since %s", obstacle)
