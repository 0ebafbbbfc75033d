"""Known faults that a run may have if it left the band around a published loss curve.

With Adam and similar optimizers, a step's size is proportional to the learning rate, so while the rate is small the loss is
nearly a function of the sum of all rates so far. A run whose effective rate is not the one in its log leads or lags the
published curve by a constant factor of that sum, and a run without warm-up leads by what the warm-up would have reduced. Adam
cancels a constant factor of the gradient, so only the gradient's norm reveals one.

`benchmarks/curve_detection.py` measures how often each sentence is right.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from relm.recipes.curves import LOSS, NORM, RATE, Curve

Values = NDArray[np.float64]
# Factors of the learning rate that are tried.
FACTORS = np.geomspace(0.2, 5.0, 65)
# Factors closer to 1 are not named.
LEAST_FACTOR = 1.3
# Part of the squared difference from the published curve that a named fault must leave unexplained at most.
UNEXPLAINED = 0.3
# Lines that a comparison of losses needs, and those of which the gradient's norm is compared.
FEWEST_LINES, NORM_LINES = 6, 20
# Factors of the gradient's norm closer to 1 may have other causes.
LEAST_NORM_FACTOR = 3.0


def describe_resemblance(curve: Curve, steps: Sequence[int], losses: Sequence[float], norms: Sequence[float]) -> str | None:
    """Return the known fault that a run resembles, as a phrase that begins with "as with"; None: no known fault.

    `norms` are the gradient's norms of all lines, or empty if the log has none.
    """
    return _resembling_norm(curve, steps, norms) or _resembling_rate(curve, steps, losses)


def _resembling_norm(curve: Curve, steps: Sequence[int], norms: Sequence[float]) -> str | None:
    """Name the fault that a constant factor of the gradient's norm suggests."""
    if not norms or NORM not in curve.columns:
        return None
    published = np.log(np.interp(steps[:NORM_LINES], curve.steps, curve.columns[NORM]))
    factor = math.exp(float(np.median(np.log(norms[:NORM_LINES]) - published)))
    first = norms[0] / math.exp(published[0])
    if min(factor, first) > LEAST_NORM_FACTOR:
        return f"as with a gradient divided by too few tokens: its norm is {factor:.2g} times the published"
    if max(factor, first) < 1 / LEAST_NORM_FACTOR:
        cause = "a gradient of one replica only, or divided by too many tokens"
        return f"as with {cause}: its norm is {factor:.2g} times the published"
    return None


def _resembling_rate(curve: Curve, steps: Sequence[int], losses: Sequence[float]) -> str | None:
    """Name the fault that a lead over the published curve, or a lag behind it, suggests."""
    if RATE not in curve.columns or len(steps) < FEWEST_LINES:
        return None
    own = np.array(losses)
    tried = [(float(((own - loss) ** 2).mean()), phrase) for loss, phrase in _expected_losses(curve, np.array(steps, float))]
    unchanged = tried[0][0]
    least, phrase = min(tried)
    return phrase if phrase and least < UNEXPLAINED * unchanged else None


def _expected_losses(curve: Curve, steps: Values) -> Iterator[tuple[Values, str]]:
    """Yield the losses at some steps under each known fault, with its phrase; the published ones, without any, first."""
    every = np.arange(1, int(max(curve.steps[-1], steps[-1])) + 1, dtype=np.float64)
    published = np.interp(every, curve.steps, curve.columns[LOSS])
    rates = np.interp(every, curve.steps, curve.columns[RATE])
    progress = _sums_before(rates)

    def at(other: Values) -> Values:
        return np.interp(np.interp(steps, every, other), progress, published)

    yield at(progress), ""
    for factor in FACTORS:
        if max(factor, 1 / factor) >= LEAST_FACTOR:
            yield at(factor * progress), f"as with {factor:.1f} times the learning rate"
    peak = int(rates.argmax())
    if peak:
        without = np.where(np.arange(len(rates)) < peak, rates[peak], rates)
        yield at(_sums_before(without)), "as without a warm-up"


def _sums_before(rates: Values) -> Values:
    """Return the sum of the learning rates of all steps before each: the loss of a step is measured before its update."""
    return np.concatenate([[0.0], np.cumsum(rates)[:-1]])
