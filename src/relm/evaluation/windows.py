"""How a document longer than a model's context is cut into windows, as integers alone: no text, no model.

A window sees at most `context` tokens; what it scores are its last ones, each given those before it in the window. The first
token of the array is never scored: it is the document's own, or the end of text that was put before it.
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
    """Windows in an array of tokens, those that score something."""

    starts: Integers
    """(windows,) where each begins."""
    ends: Integers
    """(windows,) where each ends, its last token excluded as usual."""
    scored: Integers
    """(windows,) how many of its last tokens are scored: at least 1, fewer than it has."""
    weights: Integers
    """(windows,) how much the mean loss of each counts in the whole's: as many as it scores, but for `strided`."""
    published: int
    """How many windows the protocol makes, with those that score nothing."""

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, limit: int | None) -> "Windows":
        """The first so many; None: all."""
        if limit is None:
            return self
        kept = slice(limit)
        return Windows(self.starts[kept], self.ends[kept], self.scored[kept], self.weights[kept], min(limit, self.published))


def windows_of(kind: Kind, tokens: int, context: int, stride: int) -> Windows:
    """The windows over an array of so many tokens.

    Args:
        context: the most tokens that a prediction sees.
        stride: tokens from one window to the next, at most `context`; rolling windows have none.
    """
    if kind == "rolling":
        return rolling(tokens, context)
    return overlapping(tokens, context, stride) if kind == "overlapping" else strided(tokens, context, stride)


def overlapping(tokens: int, context: int, stride: int) -> Windows:
    """Windows of `context` tokens and the one after, beginning every `stride`, as Megatron-LM cuts its validation text.

    The first one scores all its tokens but the first, each later one its last `stride`, fewer at the end of the text. Megatron
    goes on to windows that begin so late that all they would score lies beyond the end: they count in `published` alone.
    """
    if tokens < 2:
        return _none()
    published = -(-max(tokens - 1 - stride, 0) // stride) + 1
    later = -(-max(tokens - 1 - context, 0) // stride)
    starts = np.arange(later + 1, dtype=np.int64) * stride
    ends = np.minimum(starts + context + 1, tokens)
    first_scored = np.where(starts == 0, 1, starts + context + 1 - stride)
    scored = ends - first_scored
    return Windows(starts, ends, scored, scored, published)


def rolling(tokens: int, context: int) -> Windows:
    """Windows of `context` tokens to score, as lm_eval's `get_rolling_token_windows` with a context of one token cuts them.

    Each sees one token before those it scores; the last one, which has fewer left to score, reaches back as far as it can.
    """
    if tokens < 2:
        return _none()
    reached = np.arange(1, tokens, context, dtype=np.int64)
    ends = np.minimum(reached + context, tokens)
    starts = np.maximum(ends - context - 1, 0)
    return Windows(starts, ends, ends - reached, ends - reached, len(ends))


def strided(tokens: int, context: int, stride: int) -> Windows:
    """Windows of `context` tokens, beginning every `stride`, as in https://huggingface.co/docs/transformers/perplexity.

    Each scores the tokens that the one before did not reach. A window's first token has nothing before it: where windows do not
    overlap it is lost. The page weighs a window's mean loss by one token less than are new in it, although only a window of
    nothing but new ones loses one; and it stops with the first window that reaches the end.
    """
    if tokens < 2:
        return _none()
    published = -(-max(tokens - context, 0) // stride) + 1
    starts = np.arange(published, dtype=np.int64) * stride
    ends = np.minimum(starts + context, tokens)
    new = np.diff(ends, prepend=0)
    scored = np.minimum(new, ends - starts - 1)
    kept = scored > 0
    return Windows(starts[kept], ends[kept], scored[kept], (new - 1)[kept], published)


def windows_of_documents(kind: Kind, sizes: Sequence[int] | Integers, context: int, stride: int) -> Windows:
    """The windows of documents that lie one after the other in one array: none crosses from one into the next.

    Args:
        sizes: (documents,) tokens of each.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    found = [windows_of(kind, int(size), context, stride) for size in sizes]
    return Windows(
        np.concatenate([_EMPTY, *(each.starts + offset for each, offset in zip(found, offsets, strict=False))]),
        np.concatenate([_EMPTY, *(each.ends + offset for each, offset in zip(found, offsets, strict=False))]),
        np.concatenate([_EMPTY, *(each.scored for each in found)]),
        np.concatenate([_EMPTY, *(each.weights for each in found)]),
        sum(each.published for each in found),
    )


_EMPTY = np.zeros(0, dtype=np.int64)


def _none() -> Windows:
    """A single token, or none: nothing is scored."""
    return Windows(_EMPTY, _EMPTY, _EMPTY, _EMPTY, 0)
