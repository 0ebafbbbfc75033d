"""The likeliest answers by the logits of their first and last tokens, chosen as in the original BERT's `run_squad.py`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.evaluation.fine_tuning.answer_text import answer_text
from relm.examples.fine_tuning.answer_windows import AnswerWindows, AskedQuestion
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

Floats = npt.NDArray[np.floating]
# The original's answer to a question without a possible span.
NO_ANSWER = "empty"


class SearchLimits(NamedTuple):
    """Limits of the search for answers; the defaults are those of `run_squad.py`."""

    n_best: int = 20
    """Number of likeliest first and last tokens of each window to combine, and of answers to keep."""
    longest: int = 30
    """Tokens of the longest answer."""


class Span(NamedTuple):
    """A possible answer in one window."""

    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Return the sum of both logits."""
        return self.start_logit + self.end_logit


class RankedAnswer(NamedTuple):
    """One of the likeliest answers to a question."""

    text: str
    start_logit: float
    end_logit: float
    probability: float
    """Its share among the kept answers, by softmax of the sums of logits."""


def rank_answers(
    tokenizer: LoadedTokenizer,
    questions: Sequence[AskedQuestion],
    windows: AnswerWindows,
    logits: tuple[Floats, Floats],
    limits: SearchLimits,
) -> list[list[RankedAnswer]]:
    """Return the likeliest answers to each question in order, all with different texts.

    The logits are those of the first and of the last token, (windows, sequence) each.
    """
    first = np.searchsorted(windows.questions, np.arange(len(questions) + 1)).tolist()
    return [
        _ranked(_texts(tokenizer, asked, windows, _spans(windows, range(begin, stop), *logits, limits)), limits.n_best)
        for asked, begin, stop in zip(questions, first, first[1:], strict=False)
    ]


def _spans(windows: AnswerWindows, numbers: range, starts: Floats, ends: Floats, limits: SearchLimits) -> Iterator[Span]:
    """Yield the possible answers in some windows: within the paragraph, and where their first token has the most context."""
    for number in numbers:
        inside = range(int(windows.context_starts[number]), int(windows.lengths[number]) - 1)
        likeliest_ends = [end for end in _likeliest(ends[number], limits.n_best) if end in inside]
        for start in _likeliest(starts[number], limits.n_best):
            if start in inside and windows.has_most_context[number, start]:
                for end in likeliest_ends:
                    if start <= end < start + limits.longest:
                        yield Span(number, start, end, float(starts[number, start]), float(ends[number, end]))


def _likeliest(logits: Floats, count: int) -> list[int]:
    """Return the positions of the largest logits in order, the first of equal ones first."""
    found: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return found


def _texts(
    tokenizer: LoadedTokenizer, asked: AskedQuestion, windows: AnswerWindows, spans: Iterable[Span]
) -> Iterator[tuple[str, Span]]:
    """Yield spans with their texts, the likeliest first."""
    for span in sorted(spans, key=lambda span: span.score, reverse=True):
        shift = int(windows.first_tokens[span.window] - windows.context_starts[span.window])
        yield answer_text(tokenizer, asked.paragraph, span.start + shift, span.end + shift), span


def _ranked(spans: Iterable[tuple[str, Span]], n_best: int) -> list[RankedAnswer]:
    found: dict[str, Span] = {}
    for text, span in spans:
        found.setdefault(text, span)
        if len(found) == n_best:
            break
    if not found:
        return [RankedAnswer(NO_ANSWER, 0.0, 0.0, 1.0)]
    scores = np.array([span.score for span in found.values()])
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return [
        RankedAnswer(text, span.start_logit, span.end_logit, float(share))
        for (text, span), share in zip(found.items(), shares, strict=True)
    ]
