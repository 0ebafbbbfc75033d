"""The choice of the next token from logits: its settings, and the logits processors of `transformers` that apply them.

`generate` decodes greedily. For sampling, the last processor draws a token for each text and leaves only that one possible:
`generate` would draw from one stream for the whole batch, and a text would depend on the others.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from relm.errors import RelmError
from relm.evaluation.model_checks import NOT_FINITE


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling: penalty, temperature, top-k and top-p are applied in this order before a token is drawn."""

    temperature: float = 0.8
    """Divisor of the logits; 0 always takes the likeliest token, whatever top-k and top-p."""
    top_k: int | None = 50
    """Number of likeliest tokens to draw from (Fan et al. 2018), plus those as likely as the last; None: all."""
    top_p: float = 0.95
    """Total probability of the likeliest tokens to draw from (Holtzman et al. 2020); 1: all."""
    repetition_penalty: float = 1.0
    """Divisor of positive logits and factor of negative ones, for tokens that the model sees in the text or its prompt
    (Keskar et al. 2019); 1: no penalty."""
    uniform_top_k: int | None = None
    """Number of likeliest tokens that are drawn with equal probability, as in Graphcore's GPT-2; temperature, top-k and top-p
    then have no effect."""

    def __post_init__(self) -> None:
        faults = {
            "temperature": (0 <= self.temperature < math.inf, "a number from 0 on"),
            "top_k": (self.top_k is None or self.top_k >= 1, "a whole number from 1 on"),
            "top_p": (0 <= self.top_p <= 1, "a probability from 0 to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "a number above 0"),
            "uniform_top_k": (self.uniform_top_k is None or self.uniform_top_k >= 1, "a whole number from 1 on"),
        }
        for name, (holds, expected) in faults.items():
            if not holds:
                raise RelmError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give {expected}")

    @property
    def draws(self) -> bool:
        """Return whether tokens are drawn at random."""
        return self.uniform_top_k is not None or self.temperature > 0

    def describe(self) -> str:
        """Return a description of the choice of tokens."""
        penalty = "" if self.repetition_penalty == 1 else f", repetition penalty {self.repetition_penalty:g}"
        if self.uniform_top_k is not None:
            return f"each token is any of the {self.uniform_top_k} likeliest, all alike{penalty}"
        if self.temperature == 0:
            return f"each token is the likeliest{penalty}"
        limits = "" if self.top_k is None else f", among the {self.top_k} likeliest"
        limits += "" if self.top_p == 1 else f", within the nucleus of {self.top_p:g}"
        return f"each token is drawn at temperature {self.temperature:g}{limits}{penalty}"


def random_stream(seed: int, number: int) -> torch.Generator:
    """Return the random generator of one text, which depends only on the seed and the number of its prompt."""
    digest = hashlib.sha256(f"sample {number} of seed {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def logits_processors(sampling: Sampling, streams: Sequence[torch.Generator] = ()) -> LogitsProcessorList:
    """Return the processors that choose the next token of each text from (batch, vocabulary) float32 logits.

    Without the texts' random generators nothing is drawn, and the result is the distribution.
    """
    chain = LogitsProcessorList([RequireFinite()])
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.uniform_top_k is not None:
        chain.append(UniformTopK(sampling.uniform_top_k))
    elif sampling.temperature > 0:
        chain.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k is not None:
            chain.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            chain.append(TopPLogitsWarper(float(sampling.top_p)))
    if streams and sampling.draws:
        chain.append(Draw(streams))
    return chain


class RequireFinite(LogitsProcessor):
    """Rejects logits whose largest is not finite; ids without a token have minus infinity."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not bool(scores.amax(-1).isfinite().all()):
            raise RelmError(NOT_FINITE)
        return scores


class UniformTopK(LogitsProcessor):
    """Makes the k likeliest tokens equally likely, as Graphcore's GPT-2 does."""

    def __init__(self, k: int) -> None:
        self._k = k

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        likeliest = scores.topk(min(self._k, scores.shape[-1])).indices
        return torch.full_like(scores, -torch.inf).scatter_(-1, likeliest, 0.0)


class Draw(LogitsProcessor):
    """Draws a token for each text on the host, from that text's stream, and leaves only this token possible."""

    def __init__(self, streams: Sequence[torch.Generator]) -> None:
        self._streams = streams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = zip(scores.softmax(-1).cpu(), self._streams, strict=True)
        tokens = torch.stack([torch.multinomial(row, 1, generator=stream) for row, stream in rows])
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens.to(scores.device), 0.0)
