"""Settings of how the next token is chosen from a model's logits; `relm.evaluation.logits_processors` applies them."""

import hashlib
import math
from dataclasses import dataclass

import torch

from relm.errors import RelmError


@dataclass(frozen=True)
class Sampling:
    """The settings: a token is drawn from the model's distribution after penalty, temperature, top-k and top-p, in this order.

    Raises:
        RelmError: a setting is out of its range.
    """

    temperature: float = 0.8
    """Divides the logits; 0 takes the likeliest token always."""
    top_k: int | None = 50
    """Only so many of the likeliest tokens (Fan et al. 2018), and those as likely as the last of them; None: all."""
    top_p: float = 0.95
    """Only the likeliest tokens that together reach this probability (Holtzman et al. 2020); 1: all."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that the text has, the prompt's included, and multiplies negative ones (Keskar et al.
    2019, as `transformers` has it); 1: none."""
    uniform_top_k: int | None = None
    """Each of so many of the likeliest tokens as often as any other, as Graphcore's GPT-2 writes; then temperature, top-k and
    top-p decide nothing."""

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
                raise RelmError(f"{name} is {getattr(self, name)}; give {expected}")

    @property
    def draws(self) -> bool:
        """Return whether chance decides anything."""
        return self.uniform_top_k is not None or self.temperature > 0

    def describe(self) -> str:
        """Return how tokens are chosen, in words."""
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
    """Return the sampling that options of the command line request; those left out, None, are the defaults of `Sampling`.

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
        raise RelmError(f"beside {deciding[0]}, {others[0]} decides nothing; leave one of them out")
    if given.get("top_k") == 0:
        given["top_k"] = None
    if greedy:
        given = {"temperature": 0, "top_k": None, "top_p": 1}
    penalty = 1.0 if repetition_penalty is None else repetition_penalty
    return Sampling(**given, repetition_penalty=penalty, uniform_top_k=uniform_top_k)  # type: ignore[arg-type]


def random_stream(seed: int, number: int) -> torch.Generator:
    """Return the random numbers of one text, which follow from the seed and the number of its prompt, and nothing else."""
    digest = hashlib.sha256(f"sample {number} of seed {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
