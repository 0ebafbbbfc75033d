"""Sampling from a language model, one token after the other."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.8
    """Divides the logits; 0 takes the likeliest token always."""
    top_k: int | None = 50
    """Only so many of the likeliest tokens (Fan et al. 2018); None: all."""
    top_p: float = 0.95
    """Only the likeliest tokens that together reach this probability (Holtzman et al. 2020); 1: all."""


def kept_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits (vocabulary,) over the temperature, those of tokens that may not be drawn at minus infinity.

    The nucleus is that of the distribution after temperature and top-k; the likeliest token is always kept.
    """
    logits = logits / sampling.temperature
    ordered, tokens = logits.sort(descending=True, stable=True)
    if sampling.top_k is not None:
        ordered[sampling.top_k :] = -torch.inf
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares
    ordered[1:][before[1:] >= sampling.top_p] = -torch.inf
    return torch.empty_like(logits).scatter_(0, tokens, ordered)


def next_token(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A token drawn from logits (vocabulary,), or the likeliest."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(kept_logits(logits, sampling).softmax(-1), 1, generator=generator))


def generated(
    model: Callable[[Tensor], Tensor],
    prompt: list[int],
    length: int,
    positions: int,
    end_of_text_id: int | None,
    sampling: Sampling,
    seed: int,
) -> list[int]:
    """Up to `length` ids that follow `prompt`, fewer if the model ends the text, whose end is left out.

    Args:
        model: input ids (batch, sequence) int64 -> logits (batch, sequence, vocabulary).
        prompt: at least one id.
        positions: the model sees so many of the newest ids.
        end_of_text_id: None: no text ends before `length`.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(length):
            window = torch.tensor([ids[-positions:]])
            token = next_token(model(window)[0, -1].float(), sampling, generator)
            if token == end_of_text_id:
                break
            ids.append(token)
    return ids[len(prompt) :]
