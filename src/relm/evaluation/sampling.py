"""Settings of sampling, the choice of the next token from logits; `relm.evaluation.logits_processors` applies them."""

import hashlib
import math
from dataclasses import dataclass

import torch

from relm.errors import RelmError


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling: penalty, temperature, top-k and top-p are applied in this order, then a token is drawn.

    Raises:
        RelmError: a setting is out of its range.
    """

    temperature: float = 0.8
    """Divisor of the logits; 0 always takes the likeliest token."""
    top_k: int | None = 50
    """Count of the likeliest tokens that may be drawn (Fan et al. 2018), with those as likely as the last; None: all."""
    top_p: float = 0.95
    """Probability that the likeliest tokens that may be drawn reach together (Holtzman et al. 2020); 1: all."""
    repetition_penalty: float = 1.0
    """Divisor of positive logits, and factor of negative ones, of tokens that the text or its prompt has (Keskar et al. 2019,
    as in `transformers`); 1: no penalty."""
    uniform_top_k: int | None = None
    """Count of the likeliest tokens that are drawn with equal probability, as by Graphcore's GPT-2; temperature, top-k and
    top-p then decide nothing."""

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


GREEDY = Sampling(temperature=0, top_k=None, top_p=1)


def requested_sampling(
    greedy: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    uniform_top_k: int | None = None,
) -> Sampling:
    """Return the sampling that options of the command line request; None stands for the default of `Sampling`.

    Args:
        top_k: 0: all tokens.

    Raises:
        RelmError: one is out of its range, or decides nothing beside another.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in given.items() if value is not None}
    alone = {"greedy": greedy, "uniform_top_k": uniform_top_k is not None}
    deciding = [name for name, requested in alone.items() if requested]
    if deciding and (others := [*deciding[1:], *given]):
        ignored, first = (name.replace("_", "-") for name in (others[0], deciding[0]))
        raise RelmError(f"--{ignored} decides nothing beside --{first}; leave one of them out")
    if given.get("top_k") == 0:
        given["top_k"] = None
    if greedy:
        given = {"temperature": 0, "top_k": None, "top_p": 1}
    penalty = 1.0 if repetition_penalty is None else repetition_penalty
    return Sampling(**given, repetition_penalty=penalty, uniform_top_k=uniform_top_k)  # type: ignore[arg-type]


def random_stream(seed: int, number: int) -> torch.Generator:
    """Return the random generator of one text, which the seed and the number of its prompt alone decide."""
    digest = hashlib.sha256(f"sample {number} of seed {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
