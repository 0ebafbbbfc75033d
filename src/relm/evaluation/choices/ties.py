"""Choices that are as likely as the best one of a question: exactly, or within the rounding of the precision.

A protocol takes the first of equal choices, so a model that cannot tell choices apart is right wherever the first one is. Split
ties count 1/k where the right choice is one of k, which is a guess among them.
"""

from collections.abc import Sequence

import numpy as np

from relm.evaluation.scoring import Flags, Floats, Integers

# Nats by which rounding moves the log-likelihood of a token, independently of that of other tokens: in float32 more than was
# found, in others half the distance from 1 to the next number, a tenth of what was found, so that no choice is near by chance.
ROUNDING = {"float32": 2.0**-16, "bfloat16": 2.0**-8, "float16": 2.0**-11}
DESCRIPTION = (
    "questions without a tie, of which a choice's score is nearer to the best one's than rounding to {precision} moves their "
    "difference: by {unit:.3g} nats times the square root of the count of tokens scored in the two, divided as the scores are"
)
SPLIT = "accuracy with 1/k where the right choice is one of k that are as likely as the best, ties and near-ties alike"


def divide(log_likelihoods: Floats, lengths: Floats) -> Floats:
    """Return the scores of choices, (choices,): log-likelihoods over lengths, minus infinity where the length is 0."""
    found: Floats = np.divide(log_likelihoods, lengths, out=np.full(len(lengths), -np.inf), where=lengths > 0)
    return found


def split_ties(
    log_likelihoods: Floats, lengths: Floats, tokens: Integers, counts: Sequence[int], answers: Integers, unit: float
) -> tuple[Floats, Flags]:
    """Return the share of each question that counts as right, and whether several choices are as likely, (questions,) each.

    Args:
        log_likelihoods: (choices,) of all questions.
        lengths: (choices,) what each is divided by.
        tokens: (choices,) count of scored tokens.
        counts: the choices of each question.
        answers: (questions,) the index of the right choice.
        unit: the rounding of a token's log-likelihood, in nats.

    >>> split_ties(np.array([-6.0, -4.0, -3.0, -3.0]), np.ones(4), np.ones(4, int), [2, 2], np.array([0, 0]), 0.0)
    (array([0. , 0.5]), array([False,  True]))
    """
    at = np.cumsum(counts)[:-1]
    values = np.split(divide(log_likelihoods, lengths), at)
    variances = np.split(np.divide(tokens, lengths**2, out=np.zeros(len(lengths)), where=lengths > 0), at)
    shares, several = np.zeros(len(counts)), np.zeros(len(counts), dtype=np.bool_)
    for number, (value, variance, answer) in enumerate(zip(values, variances, answers, strict=True)):
        best = value.argmax()
        tied = (value == value[best]) | (value + unit * np.sqrt(variance + variance[best]) >= value[best])
        shares[number], several[number] = tied[answer] / tied.sum(), tied.sum() > 1
    return shares, several
