"""Division of a document that is longer than a model's context into windows: arithmetic without text or model.

A window sees at most `context` tokens and scores its last ones, each given those before it in the window. The first token of
the array is never scored: it is the document's first, or the end of text put before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Kind = Literal["overlapping", "rolling", "strided"]


@dataclass(frozen=True)
class Windows:
    """Windows in an array of tokens, without those that score nothing."""

    starts: Integers
    """(windows,) index at which each begins."""
    ends: Integers
    """(windows,) index at which each ends, exclusive."""
    scored: Integers
    """(windows,) number of last tokens to score: at least 1, and not all."""
    weights: Integers
    """(windows,) weight of each window's mean loss: its number of scored tokens, except for `strided`."""
    published: int
    """Number of windows in the published protocol, with those that score nothing."""

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, limit: int | None) -> "Windows":
        """Return the first `limit` windows; None: all."""
        if limit is None:
            return self
        kept = slice(limit)
        return Windows(self.starts[kept], self.ends[kept], self.scored[kept], self.weights[kept], min(limit, self.published))


def cut_windows(kind: Kind, tokens: int, context: int, stride: int) -> Windows:
    """Return the windows over `tokens` tokens, in which a prediction sees at most `context`; rolling ones have no stride."""
    if tokens < 2:
        return _none()
    if kind == "rolling":
        return rolling(tokens, context)
    return overlapping(tokens, context, stride) if kind == "overlapping" else strided(tokens, context, stride)


def overlapping(tokens: int, context: int, stride: int) -> Windows:
    """Return windows of `context` tokens and the one after, beginning every `stride`, as Megatron-LM cuts its validation text.

    The first window scores all its tokens but the first, each later one its last `stride`, or fewer at the end of the text.
    Megatron also makes windows that begin too late to score anything; they count only in `published`.
    """
    published = -(-max(tokens - 1 - stride, 0) // stride) + 1
    later = -(-max(tokens - 1 - context, 0) // stride)
    starts = np.arange(later + 1, dtype=np.int64) * stride
    ends = np.minimum(starts + context + 1, tokens)
    first_scored = np.where(starts == 0, 1, starts + context + 1 - stride)
    scored = ends - first_scored
    return Windows(starts, ends, scored, scored, published)


def rolling(tokens: int, context: int) -> Windows:
    """Return windows with `context` tokens to score, as lm_eval's `get_rolling_token_windows` cuts them with a context of one.

    Each sees one token before those it scores; the last window has fewer left to score, and reaches back as far as it can.
    """
    reached = np.arange(1, tokens, context, dtype=np.int64)
    ends = np.minimum(reached + context, tokens)
    starts = np.maximum(ends - context - 1, 0)
    return Windows(starts, ends, ends - reached, ends - reached, len(ends))


def strided(tokens: int, context: int, stride: int) -> Windows:
    """Return windows of `context` tokens, beginning every `stride`, as in https://huggingface.co/docs/transformers/perplexity.

    Each scores the tokens that the window before did not reach; without an overlap its first token has nothing before it, and
    is not scored. The page weights a window's mean loss by its number of new tokens minus one, even where none is lost, and
    stops with the first window that reaches the end.
    """
    published = -(-max(tokens - context, 0) // stride) + 1
    starts = np.arange(published, dtype=np.int64) * stride
    ends = np.minimum(starts + context, tokens)
    new = np.diff(ends, prepend=0)
    scored = np.minimum(new, ends - starts - 1)
    kept = scored > 0
    return Windows(starts[kept], ends[kept], scored[kept], (new - 1)[kept], published)


def cut_documents(kind: Kind, sizes: Sequence[int] | Integers, context: int, stride: int) -> Windows:
    """Return the windows of concatenated documents of (documents,) `sizes`; none crosses from one document into the next."""
    found = [cut_windows(kind, int(size), context, stride) for size in sizes]
    columns = [(each.starts, each.ends, each.scored, each.weights) for each in (_none(), *found)]
    starts, ends, scored, weights = map(np.concatenate, zip(*columns, strict=True))
    before = np.repeat(np.cumsum(sizes, dtype=np.int64) - sizes, list(map(len, found)))
    return Windows(starts + before, ends + before, scored, weights, sum(each.published for each in found))


_EMPTY = np.zeros(0, dtype=np.int64)


def _none() -> Windows:
    """Return no windows, for a document of one token or none."""
    return Windows(_EMPTY, _EMPTY, _EMPTY, _EMPTY, 0)
