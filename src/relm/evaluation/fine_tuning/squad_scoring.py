"""Exact match and F1 of answers, as SQuAD 1.1's evaluate-v1.1.py computes them (Rajpurkar et al. 2016, section 6.1)."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from relm.examples.fine_tuning.squad import SpanQuestion

ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation, articles and superfluous spaces.

    >>> normalised("The  Cat's an  animal.")
    'cats animal'
    """
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def is_exact(predicted: str, answer: str) -> bool:
    """Return True if two answers are the same once normalised."""
    return normalised(predicted) == normalised(answer)


def word_f1(predicted: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall of an answer's words, repeated words included; 0 without any.

    >>> word_f1("the black cat", "a cat, black as night")
    0.6666666666666666
    """
    words, wanted = normalised(predicted).split(), normalised(answer).split()
    if not (same := sum((Counter(words) & Counter(wanted)).values())):
        return 0.0
    precision, recall = same / len(words), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score_answers(questions: Sequence[SpanQuestion], predicted: Mapping[str, str]) -> dict[str, float]:
    """Return `exact_match` and `f1`, from 0 to 1, as means over all questions, each by its best matching answer.

    `predicted` has texts by the questions' ids; a question without one scores 0.
    """
    exact = f1 = 0.0
    for question in questions:
        if (text := predicted.get(question.id)) is not None:
            exact += max(is_exact(text, answer.text) for answer in question.answers)
            f1 += max(word_f1(text, answer.text) for answer in question.answers)
    return {"exact_match": exact / len(questions), "f1": f1 / len(questions)}
