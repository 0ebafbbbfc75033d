"""The statistics of a verdict: the interval of a difference, what it would have noticed, and how many seeds would decide.

The figure of one run is drawn from N(m, s^2), so the difference of our mean over n runs and a published mean over p runs has
the standard error

    e(n) = s * sqrt(1/n + 1/p),

and with s estimated at f degrees of freedom, (difference - true difference) / e(n) is Student's t with f degrees of freedom.
The 95 % interval of the true difference is therefore

    difference -+ t(0.975, f) * e(n).

s comes from our own n seeds (f = n - 1), from k other runs that the recipe states (f = k - 1), or from both. Then the variances
are pooled, each weighted by its degrees of freedom, which add up. This takes all runs to have the same variance.

The verdict is `consistent` only if that whole interval lies inside [-tolerance, +tolerance], which is two one-sided tests at
2.5 % each (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657). It is `not consistent` only if the whole interval lies
outside, and otherwise `undecided`.

Power: a true difference of tolerance + c * e(n), where s is the true standard deviation, gets `not consistent` with the
probability that a noncentral t with f degrees of freedom and the noncentrality c exceeds t(0.975, f). A power of 80 % fixes c.
With many degrees of freedom c is t(0.975) + t(0.80), as in the minimum detectable effect of Bloom (1995, Evaluation Review 19,
547); with two it is 5.65 in place of 5.36.

If difference and s stay the same, m > n of our seeds decide as soon as

    t(0.975, f + m - n) * e(m) < |tolerance - |difference||.

If that does not hold in the limit, 1.96 * s / sqrt(p), the published mean itself is too uncertain for any count of seeds.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE, POWER = 0.975, 0.80


class Spread(NamedTuple):
    """Seed-to-seed noise: the standard deviation of single runs, as it was estimated."""

    standard_deviation: float
    degrees_of_freedom: int


class MeanDifference(NamedTuple):
    """A mean over our runs, and a published mean."""

    spread: Spread
    our_runs: int
    published_runs: int

    @property
    def standard_error(self) -> float:
        """The standard error of the difference."""
        return self._standard_error(self.our_runs)

    @property
    def half_width(self) -> float:
        """Half the width of the difference's 95 % interval."""
        return _quantile(CONFIDENCE, self.spread.degrees_of_freedom) * self.standard_error

    def noticeable_difference(self, tolerance: float) -> float:
        """Return the true difference that would give `not consistent` four times in five."""
        return tolerance + _noncentrality(self.spread.degrees_of_freedom) * self.standard_error

    def deciding_seeds(self, tolerance: float, difference: float) -> int | None:
        """Return how many of our seeds would decide an undecided figure if it stayed the same; None: none would."""
        margin = abs(tolerance - abs(difference))
        if _normal_quantile(CONFIDENCE) * self.spread.standard_deviation / math.sqrt(self.published_runs) >= margin:
            return None
        enough = 2 * self.our_runs
        while not self._would_decide(enough, margin):
            enough *= 2
        too_few = max(self.our_runs, enough // 2)
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            enough, too_few = (middle, too_few) if self._would_decide(middle, margin) else (enough, middle)
        return enough

    def _would_decide(self, seeds: int, margin: float) -> bool:
        degrees_of_freedom = self.spread.degrees_of_freedom + seeds - self.our_runs
        return _quantile(CONFIDENCE, degrees_of_freedom) * self._standard_error(seeds) < margin

    def _standard_error(self, our_runs: int) -> float:
        return self.spread.standard_deviation * math.sqrt(1 / our_runs + 1 / self.published_runs)


def measure_spread(values: Sequence[float]) -> Spread | None:
    """Return the standard deviation of runs; None of a single run, and of runs that are all equal, which show no noise."""
    if len(set(values)) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Spread(math.sqrt(variance), len(values) - 1)


def pool_spreads(spreads: Sequence[Spread]) -> Spread | None:
    """Return the root of the variances' mean, each weighted by its degrees of freedom; None without any."""
    if not spreads:
        return None
    degrees_of_freedom = sum(spread.degrees_of_freedom for spread in spreads)
    squares = math.fsum(spread.degrees_of_freedom * spread.standard_deviation**2 for spread in spreads)
    return Spread(math.sqrt(squares / degrees_of_freedom), degrees_of_freedom)


# scipy takes a second to import, so each function that needs it does so itself.


def _quantile(probability: float, degrees_of_freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(probability, degrees_of_freedom))


def _normal_quantile(probability: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(probability))


def _noncentrality(degrees_of_freedom: int) -> float:
    """Return the noncentrality at which a noncentral t exceeds t(0.975) four times in five."""
    from scipy.optimize import brentq
    from scipy.stats import nct

    threshold = _quantile(CONFIDENCE, degrees_of_freedom)
    # A central t that is moved by the quantiles is close for many degrees of freedom, and too low for few.
    guess = threshold + _quantile(POWER, degrees_of_freedom)
    return float(brentq(lambda shift: nct.sf(threshold, degrees_of_freedom, shift) - POWER, 0.5 * guess, 2 * guess))
