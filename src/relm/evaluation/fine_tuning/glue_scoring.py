"""The figures of GLUE (Wang et al. 2019, arXiv 1804.07461): accuracy, F1, and three correlations.

They equal scikit-learn's and scipy's even where undefined: a constant prediction has Matthews' correlation 0, and Pearson's and
Spearman's NaN.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import pearsonr, rankdata

Values = npt.NDArray[np.number]


def accuracy(predicted: Values, wanted: Values) -> float:
    """Return the share of right predictions, both (examples,)."""
    return float(np.mean(predicted == wanted))


def f1(predicted: Values, wanted: Values) -> float:
    """Return the harmonic mean of precision and recall of label 1, or 0 if it is never predicted rightly.

    >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]))
    0.5
    """
    right, _, wrong, missed = _confusion(predicted, wanted)
    return 2 * right / (2 * right + wrong + missed) if right else 0.0


def matthews_correlation(predicted: Values, wanted: Values) -> float:
    """Return the correlation of labels 0 and 1, from -1 to 1 (Matthews 1975), or 0 if either is constant.

    >>> matthews_correlation(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
    0.5773502691896258
    """
    right, rejected, wrong, missed = _confusion(predicted, wanted)
    scale = (right + wrong) * (right + missed) * (rejected + wrong) * (rejected + missed)
    return (right * rejected - wrong * missed) / math.sqrt(scale) if scale else 0.0


def _confusion(predicted: Values, wanted: Values) -> tuple[int, int, int, int]:
    """Count true positives, true negatives, false positives and false negatives, where label 1 is positive."""
    positive, is_wanted = predicted == 1, wanted == 1
    right, rejected = int((positive & is_wanted).sum()), int((~positive & ~is_wanted).sum())
    return right, rejected, int((positive & ~is_wanted).sum()), int((~positive & is_wanted).sum())


def pearson_correlation(predicted: Values, wanted: Values) -> float:
    """Return the linear correlation of two lists of numbers, both (examples,), or NaN if one is constant."""
    if min(len(np.unique(predicted)), len(np.unique(wanted))) < 2:
        return math.nan
    return float(pearsonr(predicted, wanted).statistic)


def spearman_correlation(predicted: Values, wanted: Values) -> float:
    """Return the linear correlation of the ranks of two lists of numbers; equal numbers share a mean rank."""
    return pearson_correlation(rankdata(predicted), rankdata(wanted))


METRICS: dict[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews_correlation": matthews_correlation,
    "pearson_correlation": pearson_correlation,
    "spearman_correlation": spearman_correlation,
}
"""Name of a figure -> function of predictions and labels."""


def score_predictions(metrics: Sequence[str], predicted: Values, wanted: Values) -> dict[str, float]:
    """Return the figures of predicted classes or scores; an undefined correlation counts as 0, so that seeds have a mean."""
    found = {name: METRICS[name](predicted, wanted) for name in metrics}
    return {name: 0.0 if math.isnan(value) else value for name, value in found.items()}
