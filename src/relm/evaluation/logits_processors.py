"""Logits processors of `transformers` that choose the next token, in its order and by its definitions.

All of them work on the logits of a batch, (batch, vocabulary) float32. When sampling, the last one draws a token for
each text and leaves only that one possible, so that `generate`, which decodes greedily, takes it. `generate` itself would draw
from one stream of random numbers for the whole batch, so that a text depended on the others.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from relm.errors import RelmError
from relm.evaluation.sampling import Sampling

NOT_FINITE = "the model's logits are not finite: training diverged; lower the learning rate and train again"
# The nucleus is searched among this many of the likeliest tokens before the whole vocabulary is sorted.
NUCLEUS_FIRST = 512


def logits_processors(
    sampling: Sampling, texts: Sequence[Sequence[int]], streams: Sequence[torch.Generator]
) -> LogitsProcessorList:
    """Return the processors that choose the next token of each text.

    Args:
        texts: ids of each text of the batch, which grow as the texts do.
        streams: the random generator of each text; unused if nothing is drawn.
    """
    drawn = [Draw(streams)] if sampling.draws else []
    return LogitsProcessorList([RequireFinite(), *filters(sampling, texts), *drawn])


def filters(sampling: Sampling, texts: Sequence[Sequence[int]]) -> LogitsProcessorList:
    """Return the processors that set logits of excluded tokens to minus infinity; arguments as of `logits_processors`."""
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenalty(sampling.repetition_penalty, texts))
    if sampling.uniform_top_k is not None:
        chain.append(UniformTopK(sampling.uniform_top_k))
    elif sampling.temperature > 0:
        chain.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k is not None:
            chain.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            chain.append(Nucleus(sampling.top_p))
    return chain


class RequireFinite(LogitsProcessor):
    """Refuses logits that are not finite; minus infinity stands for an id that no token has, so only the largest counts.

    Raises:
        RelmError: those of a text are not finite.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (batch, vocabulary) logits unchanged."""
        if not bool(scores.amax(-1).isfinite().all()):
            raise RelmError(NOT_FINITE)
        return scores


class RepetitionPenalty(LogitsProcessor):
    """The penalty of `transformers` for all tokens of a text: those before the model's window too, padding never."""

    def __init__(self, penalty: float, texts: Sequence[Sequence[int]]) -> None:
        self._penalise, self._texts = RepetitionPenaltyLogitsProcessor(float(penalty)), texts

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return logits of the same shape, (batch, vocabulary)."""
        rows = zip(self._texts, scores, strict=True)
        return torch.cat([self._penalise(torch.tensor([text], device=row.device), row[None]) for text, row in rows])


class UniformTopK(LogitsProcessor):
    """Makes each of the k likeliest tokens as likely as any other, as Graphcore's GPT-2 does."""

    def __init__(self, k: int) -> None:
        self._k = k

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return logits of the same shape, (batch, vocabulary)."""
        likeliest = scores.topk(min(self._k, scores.shape[-1])).indices
        return torch.full_like(scores, -torch.inf).scatter_(-1, likeliest, 0.0)


class Nucleus(LogitsProcessor):
    """Keeps the likeliest tokens that together reach a probability; the likeliest always stays.

    Equally likely tokens stay together or not at all. `TopPLogitsWarper` lets the order of sorting decide, and sorts the whole
    vocabulary for every token.
    """

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return logits of the same shape, (batch, vocabulary)."""
        whole = scores.logsumexp(-1, keepdim=True)
        largest = scores.topk(min(NUCLEUS_FIRST, scores.shape[-1])).values
        shares = (largest - whole).exp()
        if bool((shares.sum(-1) < self._top_p).any()):
            largest = scores.sort(dim=-1, descending=True).values
            shares = (largest - whole).exp()
        before = shares.cumsum(-1) - shares
        kept = (before < self._top_p).sum(-1, keepdim=True).clamp(min=1)
        return scores.masked_fill(scores < largest.gather(-1, kept - 1), -torch.inf)


class Draw(LogitsProcessor):
    """Draws a token for each text on the host, from a stream of its own, and leaves only that token possible."""

    def __init__(self, streams: Sequence[torch.Generator]) -> None:
        self._streams = streams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return logits of the same shape, (batch, vocabulary)."""
        probabilities = scores.softmax(-1).cpu()
        # One by one: the token drawn for a text must not depend on the size of the batch.
        rows = zip(probabilities, self._streams, strict=True)
        tokens = torch.stack([torch.multinomial(row, 1, generator=stream) for row, stream in rows])
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens.to(scores.device), 0.0)
