"""The band around a published loss curve that averages of another run of the same recipe should stay in.

Single losses are noisy, so the average over a window of steps that ends at each logged step is compared with that of the same
steps of the published curve. With repetitions of the published run, the spread of these averages between runs is the band's
width, which covers noise of batches and slow differences between runs at any log interval. Without repetitions, the width
combines the noise of the curve and a stated spread between runs.

The half-width is the quantile of Student's distribution at which any average of a run leaves the band with the stated
probability, by Bonferroni's inequality over windows that do not overlap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relm.recipes.curves import LOSS, NORM, Curve, ExpectedCurve

Values = NDArray[np.float64]
# Averages over the window and over this many windows are compared.
SCALES = (1, 4)
# Spreads of neighbouring steps are pooled, from a step divided by this to the step times this.
NEIGHBOURHOOD = 1.3
# Sliding windows leave a band more often than windows that do not overlap: each of those counts as this many.
OVERLAP = 4
# The curve's rows around a step from which the noise of single batches is estimated, to both sides.
NOISE_ROWS = 50


@dataclass(frozen=True)
class Averages:
    """Averages of the published curve at each logged step, and the largest difference within the band."""

    column: str
    """`loss`, or `gradient_norm`, whose logarithms are averaged."""
    window: int
    """Steps over which is averaged."""
    steps: Sequence[int]
    """The steps of the lines."""
    first: NDArray[np.intp]
    """Index of the first line in the window that ends with each line, (lines,)."""
    mean: Values
    """(lines,)"""
    half_width: Values
    """(lines,)"""


def expected_averages(expected: ExpectedCurve, curve: Curve, steps: Sequence[int], last: int) -> list[Averages]:
    """Return the expected averages at the logged steps, for each window and column.

    `last` is the last step that is compared, for the count of windows up to there.
    """
    at = np.array(steps, dtype=np.float64)
    found = []
    columns = [column for column in (LOSS, NORM) if _is_compared(expected, curve, column)]
    windows = [expected.window * scale for scale in SCALES]
    tests = OVERLAP * len(columns) * sum(max(1.0, last / window) for window in windows)
    for column in columns:
        runs = [_at(curve, values, column, at) for values in curve.repetitions(column)]
        stated = expected.band.parts if column == LOSS else expected.band.gradient_norm_ratio
        for window in windows:
            first = np.searchsorted(at, at - window, side="right")
            mean = averages(_at(curve, curve.columns[column], column, at), first)
            if not stated:
                each = np.array([averages(run, first) for run in runs])
                mean, deviation, freedom = each.mean(axis=0), _spread(each, at), len(runs) - 1
                half_width = deviation * student_quantile(expected.false_alarm_rate / tests, freedom)
            elif column == NORM:
                half_width = np.full(len(at), math.log(expected.band.gradient_norm_ratio or math.inf))
            else:
                counts = np.arange(1, len(at) + 1) - first
                # The noise of ours, and that of the curve, which is smaller where it is a mean of runs.
                noise = (max(1, len(runs)) + 1) * _noise(curve, at) ** 2 / counts
                deviation = np.sqrt(_stated(expected, at) ** 2 + noise)
                half_width = deviation * student_quantile(expected.false_alarm_rate / tests, NOISE_ROWS)
            found.append(Averages(column, window, steps, first, mean, half_width))
    return found


def averages(values: Values, first: NDArray[np.intp]) -> Values:
    """Return the averages of the lines from `first` to each line, ``(lines,) -> (lines,)``.

    >>> averages(np.array([1.0, 2.0, 6.0]), np.array([0, 0, 1])).tolist()
    [1.0, 1.5, 4.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    means: Values = (sums[last] - sums[first]) / (last - first)
    return means


def _is_compared(expected: ExpectedCurve, curve: Curve, column: str) -> bool:
    if column == LOSS:
        return True
    stated = expected.band.gradient_norm_ratio is not None and NORM in curve.columns
    return stated or len(curve.repetitions(NORM)) > 1


def _at(curve: Curve, values: Sequence[float], column: str, at: Values) -> Values:
    """Return a column of the curve at any steps, in logarithms for the gradient's norm."""
    column_values = np.log(values) if column == NORM else np.array(values)
    return np.interp(at, np.array(curve.steps, dtype=np.float64), column_values)


def _spread(each: Values, at: Values) -> Values:
    """Return the standard deviation of another run from the mean of the runs, ``(runs, lines) -> (lines,)``.

    With few runs it is uncertain, so it is pooled over neighbouring steps, and a step with a larger one keeps that.
    """
    count = len(each)
    own = each.var(axis=0, ddof=1)
    low, high = np.searchsorted(at, at / NEIGHBOURHOOD), np.searchsorted(at, at * NEIGHBOURHOOD, side="right")
    sums = np.concatenate([[0.0], np.cumsum(own)])
    pooled = (sums[high] - sums[low]) / (high - low)
    deviation: Values = np.sqrt(np.maximum(pooled, own) * (1 + 1 / count))
    return deviation


def _stated(expected: ExpectedCurve, at: Values) -> Values:
    """Return the stated spread from run to run at each step."""
    parts = expected.band.parts
    starts = np.array([part.from_step for part in parts])
    widths = np.array([part.standard_deviation for part in parts])
    stated: Values = widths[np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)]
    return stated


def _noise(curve: Curve, at: Values) -> Values:
    """Return the noise of single losses around each step, from the curve's second differences, which a trend hardly changes."""
    losses = np.array(curve.columns[LOSS])
    if len(losses) < 3:
        return np.zeros(len(at))
    squares = np.diff(losses, 2) ** 2 / 6
    sums = np.concatenate([[0.0], np.cumsum(squares)])
    nearest = np.searchsorted(np.array(curve.steps), at)
    low = np.clip(nearest - NOISE_ROWS, 0, max(0, len(squares) - NOISE_ROWS))
    high = np.clip(nearest + NOISE_ROWS, low + 1, len(squares))
    noise: Values = np.sqrt((sums[high] - sums[low]) / (high - low))
    return noise


def student_quantile(probability: float, freedom: int) -> float:
    """Return the value that Student's t exceeds in size with a probability.

    >>> round(student_quantile(0.05, 18), 3), round(student_quantile(0.0001, 18), 2)
    (2.101, 4.97)
    """
    from scipy.stats import t  # takes a second to import

    return float(t.isf(probability / 2, freedom))
