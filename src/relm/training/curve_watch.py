"""Compares a run with a published loss curve, line by line of `train.jsonl`.

The learning rate is compared directly, and averages of the loss and of the gradient's norm with a band (`curve_band`). The
state depends only on the lines: a resumed run reads them again, and any process comes to the same verdict.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from relm.recipes.curves import LOSS, NORM, RATE, Curve, ExpectedCurve
from relm.recipes.run_folder import CURVE, LOG
from relm.training.attested_hashes import read_lines
from relm.training.curve_band import Averages, expected_averages
from relm.training.curve_faults import FEWEST_LINES, describe_resemblance

if TYPE_CHECKING:  # the report compares without torch
    from relm.training.phase_run import PhaseRun

WITHIN = "within the band"
# Largest relative difference of equal learning rates, in addition to the rounding of the published one.
RATE_TOLERANCE = 0.01


@dataclass
class CurveWatch:
    """The comparison of a phase with its curve, up to its newest line."""

    expected: ExpectedCurve
    curve: Curve
    steps: Sequence[int]
    """The steps whose lines are to come; a line of another step is compared as well."""
    left_at: int | None = None
    """The step at which the run left the band."""
    verdict: str = WITHIN
    """The sentence that status, progress and report show."""
    bands: list[Averages] = field(default_factory=list)
    """The published averages at the steps so far and to come; the first is that of losses over one window."""
    _lines: list[Mapping[str, Any]] = field(default_factory=list)
    _values: dict[str, list[float]] = field(default_factory=lambda: {LOSS: [], NORM: []})
    """Our losses and logarithms of norms, a value a line; NaN where a line has none."""
    _rates: list[float] = field(default_factory=list)
    """The published learning rate at each step of the bands; empty if the curve has none."""
    _resembles: str | None = None
    _lines_outside: int = 0

    def judge(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Take the next line and return its key `curve`: the published average and ours, the band, and the verdict.

        A line without the curve's loss gets no such key: a curve of validation losses has few lines.
        """
        if self.curve.loss_key not in line:
            return {}
        at = self._take(line)
        losses = [(self._average(band, at), band) for band in self.bands if band.column == LOSS]
        if self.left_at is None:
            self._leave(line, at)
        if self.left_at is not None:
            self._compare_faults(line)
        own, narrow = losses[0]
        figures = {
            "loss": round(own, 5),
            "published": round(float(narrow.mean[at]), 5),
            "band": round(float(narrow.half_width[at]), 5),
        }
        return {CURVE: {**figures, "verdict": self.verdict}}

    def _take(self, line: Mapping[str, Any]) -> int:
        """Add a line and return its index; the band is computed once for the lines to come."""
        at = len(self._lines)
        self._lines.append(line)
        planned = self.bands[0].steps if self.bands else []
        if at >= len(planned) or planned[at] != line["step"]:
            later = [step for step in self.steps if step > line["step"]]
            steps = [*(int(row["step"]) for row in self._lines), *later]
            self.bands = expected_averages(self.expected, self.curve, steps, self.curve.steps[-1])
            if RATE in self.curve.columns:
                self._rates = np.interp(steps, self.curve.steps, self.curve.columns[RATE]).tolist()
        self._values[LOSS].append(float(line[self.curve.loss_key]))
        norm = float(line.get("gradient_norm") or math.nan)
        self._values[NORM].append(math.log(norm) if norm > 0 else math.nan)
        return at

    def _average(self, band: Averages, at: int) -> float:
        """Return our average over the window that ends with a line."""
        window = self._values[band.column][int(band.first[at]) : at + 1]
        return math.fsum(window) / len(window)

    def _leave(self, line: Mapping[str, Any], at: int) -> None:
        """Set the verdict if this line is outside the band."""
        step = int(line["step"])
        if step > self.curve.steps[-1]:
            return
        if (rate := self._other_rate(line, at)) is not None:
            self._found(step, f"learning rate {line['learning_rate']:.4g}, the published {rate:.4g}")
            return
        for band in self.bands:
            own = self._average(band, at)
            mean, half_width = float(band.mean[at]), float(band.half_width[at])
            # Averages of norms are not compared if a line lacks one; a loss of NaN is outside any band.
            if abs(own - mean) <= half_width or (math.isnan(own) and band.column == NORM):
                continue
            over = f" over {band.window} steps" if at > band.first[at] else ""
            if band.column == LOSS:
                self._found(step, f"loss{over} {own:.3f}, the published {mean:.3f} ± {half_width:.3f}")
            else:
                self._found(
                    step,
                    f"gradient norm{over} {math.exp(own):.3g}, the published {math.exp(mean - half_width):.3g} to "
                    f"{math.exp(mean + half_width):.3g}",
                )
            return

    def _found(self, step: int, found: str) -> None:
        self.left_at, self.verdict = step, f"left the band at step {step:,}: {found}"

    def _other_rate(self, line: Mapping[str, Any], at: int) -> float | None:
        """Return the published learning rate if it differs from the line's."""
        if not self._rates or "learning_rate" not in line:
            return None
        rate = self._rates[at]
        same = abs(float(line["learning_rate"]) - rate) <= RATE_TOLERANCE * rate + self.curve.rate_rounding
        return None if same else rate

    def _compare_faults(self, line: Mapping[str, Any]) -> None:
        """Name a known fault that the run resembles, until a window after it left the band."""
        assert self.left_at is not None
        self._lines_outside += 1
        late = line["step"] > self.left_at + self.expected.window and self._lines_outside > FEWEST_LINES
        if self._resembles is not None or late:
            return
        steps = [int(row["step"]) for row in self._lines]
        norms = [float(row["gradient_norm"]) for row in self._lines if row.get("gradient_norm")]
        losses = [float(row[self.curve.loss_key]) for row in self._lines]
        self._resembles = describe_resemblance(self.curve, steps, losses, norms if len(norms) == len(steps) else [])
        if self._resembles is not None:
            self.verdict += f"; {self._resembles}"


def open_watch(run: "PhaseRun", step: int) -> CurveWatch | None:
    """Return the watch of a phase that begins, or resumes after a step, by its log up to there; None without a curve."""
    expected, every = run.recipe.expect_curve, run.recipe.run
    if run.curve is None or expected is None or (expected.phase or next(iter(run.recipe.pretrain))) != run.phase:
        return None
    intervals = (every.log_interval, every.validation_interval) if run.curve.loss_key == LOSS else (every.validation_interval,)
    planned = planned_steps(run.settings.steps, *intervals)
    log = run.folder / LOG
    lines = [line for line in read_lines(log, until=step) if run.curve.loss_key in line] if step and log.exists() else []
    return watched(expected, run.curve, lines, [other for other in planned if other > step])


def planned_steps(last: int, *intervals: int | None) -> list[int]:
    """Return the steps of a run whose lines are logged: the first, the last, and the multiples of the intervals.

    >>> planned_steps(10, 4, None)
    [1, 4, 8, 10]
    """
    multiples = (step for interval in intervals if interval for step in range(interval, last + 1, interval))
    return sorted({1, last, *multiples})


def watched(expected: ExpectedCurve, curve: Curve, lines: Iterable[Mapping[str, Any]], steps: Sequence[int] = ()) -> CurveWatch:
    """Return the watch of a run after these lines; `steps` are those whose lines are to come."""
    lines = list(lines)
    watch = CurveWatch(expected, curve, sorted({*(int(line["step"]) for line in lines), *steps}))
    for line in lines:
        watch.judge(line)
    return watch
