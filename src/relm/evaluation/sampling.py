"""How the next token is chosen from a model's logits: filters in the order and by the definitions of `transformers`.

All of them work on a batch of texts at once, on the device of the logits; what is drawn is drawn on the host, for each text
from a stream of its own.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relm.errors import RelmError

# How many of the likeliest tokens are looked at for the nucleus, before the whole vocabulary is sorted.
NUCLEUS_FIRST = 512


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: from the model's distribution after penalty, temperature, top-k and top-p, in this order.

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
        """Whether chance decides anything."""
        return self.uniform_top_k is not None or self.temperature > 0

    def in_words(self) -> str:
        """How tokens are chosen, for a reader."""
        penalty = "" if self.repetition_penalty == 1 else f", repetition penalty {self.repetition_penalty:g}"
        if self.uniform_top_k is not None:
            return f"each token is any of the {self.uniform_top_k} likeliest, all alike{penalty}"
        if self.temperature == 0:
            return f"each token is the likeliest{penalty}"
        limits = "" if self.top_k is None else f", among the {self.top_k} likeliest"
        limits += "" if self.top_p == 1 else f", within the nucleus of {self.top_p:g}"
        return f"each token is drawn at temperature {self.temperature:g}{limits}{penalty}"


GREEDY = Sampling(temperature=0, top_k=None, top_p=1)


def asked_sampling(
    greedy: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    uniform_top_k: int | None = None,
) -> Sampling:
    """The sampling that options of the command line ask for; those left out, None, are the defaults of `Sampling`.

    Args:
        top_k: 0: all tokens.

    Raises:
        RelmError: one is out of its range, or has no say beside another.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in given.items() if value is not None}
    alone = {"greedy": greedy, "uniform_top_k": uniform_top_k is not None}
    deciding = [name for name, asked in alone.items() if asked]
    if deciding and (others := [*deciding[1:], *given]):
        raise RelmError(f"beside {deciding[0]}, {others[0]} decides nothing; leave one of them out")
    if given.get("top_k") == 0:
        given["top_k"] = None
    if greedy:
        given = {"temperature": 0, "top_k": None, "top_p": 1}
    penalty = 1.0 if repetition_penalty is None else repetition_penalty
    return Sampling(**given, repetition_penalty=penalty, uniform_top_k=uniform_top_k)  # type: ignore[arg-type]


def random_stream(seed: int, place: int) -> torch.Generator:
    """The random numbers of one text: they follow from the seed and the text's place among the prompts, and nothing else."""
    digest = hashlib.sha256(f"sample {place} of seed {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def chosen(logits: Tensor, seen: Tensor | None, sampling: Sampling, streams: Sequence[torch.Generator]) -> Tensor:
    """The next token of each text.

    Args:
        logits: (batch, vocabulary) float32.
        seen: (batch, vocabulary) bool, the tokens that each text has; only a repetition penalty asks for it.
        streams: one for each text; none where nothing is drawn.

    Returns:
        (batch,) int64 on the host.
    """
    if not sampling.draws:
        return penalised(logits, seen, sampling.repetition_penalty).argmax(-1).cpu()
    probabilities = kept_logits(logits, seen, sampling).softmax(-1).cpu()
    # One by one: what is drawn for a text must not depend on how many there are.
    drawn = [torch.multinomial(row, 1, generator=stream) for row, stream in zip(probabilities, streams, strict=True)]
    return torch.cat(drawn)


def kept_logits(logits: Tensor, seen: Tensor | None, sampling: Sampling) -> Tensor:
    """Logits (batch, vocabulary) of the distribution that is drawn from, minus infinity where nothing is drawn.

    Arguments as of `chosen`.
    """
    logits = penalised(logits, seen, sampling.repetition_penalty)
    if sampling.uniform_top_k is not None:
        likeliest = logits.topk(min(sampling.uniform_top_k, logits.shape[-1])).indices
        return torch.full_like(logits, -torch.inf).scatter_(-1, likeliest, 0.0)
    logits = logits / sampling.temperature
    if sampling.top_k is not None:
        logits = within_top_k(logits, sampling.top_k)
    return within_nucleus(logits, sampling.top_p) if sampling.top_p < 1 else logits


def penalised(logits: Tensor, seen: Tensor | None, penalty: float) -> Tensor:
    """Logits with those of tokens that a text has made smaller, where `penalty` is above 1."""
    if seen is None or penalty == 1:
        return logits
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def within_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Logits, minus infinity where they are below the k-th largest; ties with it stay."""
    least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def within_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits, minus infinity where the tokens that are likelier reach `top_p` by themselves; the likeliest always stays.

    Of equally likely tokens all stay or none, so that the order of sorting decides nothing.
    """
    candidates = min(NUCLEUS_FIRST, logits.shape[-1])
    whole = logits.logsumexp(-1, keepdim=True)
    largest = logits.topk(candidates).values
    shares = (largest - whole).exp()
    if bool((shares.sum(-1) < top_p).any()):
        largest = logits.sort(dim=-1, descending=True).values
        shares = (largest - whole).exp()
    before = shares.cumsum(-1) - shares
    kept = (before < top_p).sum(-1, keepdim=True).clamp(min=1)
    return logits.masked_fill(logits < largest.gather(-1, kept - 1), -torch.inf)
