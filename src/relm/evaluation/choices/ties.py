"""Choices that are as likely as the best one of a question: exactly, or within the rounding of the precision.

A protocol takes the first of equal choices, so a model that cannot tell them apart is right wherever the first one is. Split
ties count 1/k where the right choice is one of k, as a guess among them does.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from relm.evaluation.scoring import Flags, Floats, Integers

# Nats by which rounding moves the log-likelihood of a token, independently of other tokens: in float32 more than was measured,
# else half the distance from 1 to the next number, a tenth of what was measured, so that no choice is near by chance.
ROUNDING = {"float32": 2.0**-16, "bfloat16": 2.0**-8, "float16": 2.0**-11}
DESCRIPTION = (
    "questions without a tie, of which a choice's score is nearer to the best one's than rounding to {precision} moves their "
    "difference: by {unit:.3g} nats times the square root of the count of tokens scored in the two, divided as the scores are"
)
SPLIT = "accuracy with 1/k where the right choice is one of k that are as likely as the best, ties and near-ties alike"


class Chosen(NamedTuple):
    """The choices that a protocol takes, (questions,) each."""

    indices: Integers
    """Index of the best choice of each question, the first of equal ones."""
    equal: Flags
    """True if another choice has exactly the same score."""
    tied: Flags
    """True if another choice is as likely, exactly or within rounding."""
    shares: Floats
    """Share that counts as right if ties are split."""


def choose(
    log_likelihoods: Floats, lengths: Floats, tokens: Integers, counts: Sequence[int], answers: Integers, unit: float
) -> Chosen:
    """Choose among all questions' choices, whose log-likelihoods are divided by lengths; one of length 0 is never chosen.

    Log-likelihoods, lengths and numbers of scored tokens are (choices,); numbers of choices and indices of the right one are
    (questions,). `unit` is the rounding of a token's log-likelihood, in nats.

    >>> found = choose(np.array([-6.0, -4.0, -3.0, -3.0]), np.ones(4), np.ones(4, int), [2, 2], np.array([0, 0]), 0.0)
    >>> found.indices, found.tied, found.shares
    (array([1, 0]), array([False,  True]), array([0. , 0.5]))
    """
    at, has_length = np.cumsum(counts)[:-1], lengths > 0
    values = np.split(np.divide(log_likelihoods, lengths, out=np.full(len(lengths), -np.inf), where=has_length), at)
    variances = np.split(np.divide(tokens, lengths**2, out=np.zeros(len(lengths)), where=has_length), at)
    found = []
    for value, variance, answer in zip(values, variances, answers, strict=True):
        best = value.argmax()
        equal = value == value[best]
        tied = equal | (value + unit * np.sqrt(variance + variance[best]) >= value[best])
        found.append((best, equal.sum() > 1, tied.sum() > 1, tied[answer] / tied.sum()))
    return Chosen(*map(np.array, zip(*found, strict=True)))
