"""Generation of texts in one call of the device, by a loop whose body reads a token and chooses the next one.

Graphcore's text_generate_gpt2.py does so with `--poptorch-loop`, on one IPU. Does not import poptorch. For Python 3.8.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, List, NamedTuple, Sequence

import torch
from torch import Tensor, nn

from relm.models.cached_decoding import Cache, decode_token, read_prompts
from relm.models.decoder import Decoder

ForLoop = Callable[[int, Callable[..., Sequence[Tensor]], List[Tensor]], Sequence[Tensor]]
"""Function (count, body, inputs) that calls the body `count` times, each on the last outputs, as `poptorch.for_loop` does."""

_LARGEST = torch.finfo(torch.float32).max


class TokenRule(NamedTuple):
    """The choice of each next token, as in `relm.evaluation.generation.sampling.Sampling`; sent to the worker as JSON."""

    top_k: int
    """Count of the likeliest tokens to draw from; 1: always the likeliest."""
    temperature: float = 1.0
    """Divisor of the logits."""
    top_p: float = 1.0
    """Probability that the likeliest of these tokens reach together."""
    uniform: bool = False
    """True: all of these tokens are equally likely; temperature and top-p have no effect."""

    @property
    def draws(self) -> bool:
        """Return whether tokens are drawn at random."""
        return self.top_k > 1


class WrittenTokens(NamedTuple):
    """Texts that a device wrote."""

    tokens: Tensor
    """(batch, tokens) int64."""
    largest: Tensor
    """(batch,) float32, the sum of the largest logit at each token: finite if all of them were."""


class DecodingLoop(nn.Module):
    """A decoder with the loop that continues prompts, as the module that PopTorch traces and compiles."""

    def __init__(self, for_loop: ForLoop, model: Decoder, rule: TokenRule, tokens: int) -> None:
        """Keep the model, which writes `tokens` tokens after each prompt."""
        super().__init__()
        self._for_loop, self.model, self._rule, self._tokens = for_loop, model, rule, tokens

    def forward(self, input_ids: Tensor, lengths: Tensor, *noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fields of `WrittenTokens`.

        Args:
            input_ids: (batch, sequence) int64, prompts padded at their ends.
            lengths: (batch,) int64, tokens of each prompt.
            noise: (batch, tokens, top_k) float32, independent draws from the standard Gumbel distribution, if the rule draws.
        """
        steps = torch.arange(self._tokens, device=input_ids.device)
        # The last token is chosen but never read.
        hidden, cache = read_prompts(self.model, input_ids, input_ids.shape[1] + self._tokens - 1)
        step = torch.zeros_like(lengths[:1])
        token, largest = self._choose(_select(hidden, lengths - 1), steps == step, noise)
        record = token[:, None] * (steps == step).to(token.dtype)
        if self._tokens == 1:
            return record, largest

        def body(
            step: Tensor, token: Tensor, record: Tensor, largest: Tensor, keys: Tensor, values: Tensor
        ) -> tuple[Tensor, ...]:
            hidden, cache = decode_token(self.model, token, lengths + step, Cache(keys, values))
            step = step + 1
            # Masks in place of an index: in the device's loop the step is a tensor.
            token, found = self._choose(hidden, steps == step, noise)
            record = record + token[:, None] * (steps == step).to(token.dtype)
            return step, token, record, largest + found, cache.keys, cache.values

        state = [step, token, record, largest, *cache]
        outputs = self._for_loop(self._tokens - 1, body, state)
        return outputs[2], outputs[3]

    def _choose(self, hidden: Tensor, at: Tensor, noise: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the next token, (batch,) int64, and the largest logit, (batch,) float32.

        `hidden` is the head's input, (batch, hidden), and `at`, (tokens,) bool, true for the number of this token.
        """
        drawn = (noise[0] * at[:, None].to(noise[0].dtype)).sum(1) if noise else None
        values, tokens = self.model.head(hidden).topk(self._rule.top_k)
        return choose(values.float(), tokens, self._rule, drawn), values[:, 0].float()


def _select(hidden: Tensor, places: Tensor) -> Tensor:
    """Return the values of one position of each text, (batch, sequence, hidden) and (batch,) -> (batch, hidden)."""
    at = torch.arange(hidden.shape[1], device=hidden.device) == places[:, None]
    return (hidden * at[:, :, None].to(hidden.dtype)).sum(1)


def choose(values: Tensor, tokens: Tensor, rule: TokenRule, noise: Any) -> Tensor:
    """Return one of each text's likeliest tokens, (batch,) int64.

    A token is drawn with its probability by the largest sum of logit and Gumbel noise (Gumbel 1954).

    Args:
        values: (batch, top_k) float32, their logits, the largest first.
        tokens: (batch, top_k) int64, the tokens.
        noise: (batch, top_k) float32; None if the rule does not draw.
    """
    if not rule.draws:
        return tokens[:, 0]
    scores = noise if rule.uniform else _within_nucleus(values / rule.temperature, rule.top_p) + noise
    return tokens.gather(1, scores.argmax(-1)[:, None])[:, 0]


def _within_nucleus(values: Tensor, top_p: float) -> Tensor:
    """Mask logits, largest first, except the likeliest that reach `top_p` and those as likely as the last of them."""
    if top_p >= 1:
        return values
    shares = values.softmax(-1)
    before = shares.cumsum(-1) - shares
    is_beyond = before >= max(top_p, sys.float_info.epsilon)  # the likeliest has nothing before it and stays
    last = values.masked_fill(is_beyond, _LARGEST).amin(-1, keepdim=True)
    return values.masked_fill(values < last, -_LARGEST)


def repeat_on_host(count: int, body: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> Sequence[Tensor]:
    """Return what `poptorch.for_loop` returns, by a loop in Python."""
    state: Sequence[Tensor] = inputs
    for _ in range(count):
        state = body(*state)
    return state
