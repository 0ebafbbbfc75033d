"""Compare a finished run with the published loss curve of its recipe, for the report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relm.recipes.curves import Curve, ExpectedCurve
from relm.recipes.plan import Plan
from relm.reporting.training_charts import PublishedCurve
from relm.training.attested_hashes import read_lines
from relm.training.curve_band import averages
from relm.training.curve_watch import watched


@dataclass(frozen=True)
class WatchedRun:
    """A run and its published curve, for the page."""

    phase: str
    verdict: str
    """The sentence that progress and `relm status` show too."""
    left: bool
    """True if the run left the band."""
    curve: Curve
    expected: ExpectedCurve
    drawn: PublishedCurve


def compare_with_curve(plan: Plan, logs: Mapping[str, Path]) -> WatchedRun | None:
    """Compare the lines of a run's log with its published curve; None without a curve."""
    expected = plan.recipe.expect_curve
    if expected is None or plan.curve is None:
        return None
    phase = expected.phase or plan.phases[0]
    lines = [line for line in read_lines(logs[phase]) if plan.curve.loss_key in line and line["step"] <= plan.curve.steps[-1]]
    if not lines:
        return None
    watch = watched(expected, plan.curve, lines)
    band = watch.bands[0]
    # An average belongs to the middle of its window.
    middles = averages(np.array(band.steps, dtype=np.float64), band.first)
    drawn = PublishedCurve(phase, middles, band.mean, band.half_width)
    return WatchedRun(phase, watch.verdict, watch.left_at is not None, plan.curve, expected, drawn)
