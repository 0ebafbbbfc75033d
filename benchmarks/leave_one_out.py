"""The band of a recipe's published curve, held against the published runs themselves and against ours.

    python benchmarks/leave_one_out.py shakespeare_char [--intervals 1 10] [--curve FILE] [--results FOLDER]

Needs a curve with repetitions. Printed are the spread of averages from repetition to repetition; how many repetitions leave
the band of the others, which is the rate of false alarms; and the verdict on each published run of ours, seed by seed. Two
bands are compared: that of the recipe, and that which relm computes from the repetitions where a recipe states no width.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.recipes.curves import LOSS, NORM, RATE, Curve, CurveBand, ExpectedCurve, load_curve
from relm.recipes.project import Project
from relm.recipes.run_folder import LOG
from relm.training.curve_band import averages
from relm.training.curve_watch import CurveWatch, planned_steps, read_lines, watched

CHECKOUT = Path(__file__).resolve().parents[1]
Lines = Sequence[Mapping[str, Any]]
Values = npt.NDArray[np.float64]
# Steps over which the spread is measured, and the parts of training in which it is pooled.
BLOCK, PARTS = 20, (1, 21, 101, 501, 1001)


class Held(NamedTuple):
    """A run that was held against a band."""

    watch: CurveWatch
    share: float
    """Largest difference of any average, as a part of the half-width of its band."""
    step: int
    """The step at which the window of that average ends."""


def hold(expected: ExpectedCurve, curve: Curve, lines: Lines) -> Held:
    """Hold the lines of a run against the band of a curve."""
    watch = watched(expected, curve, lines)
    ours = [average_lines(lines, band.column, band.first) for band in watch.bands]
    shares = np.array([abs(own - band.mean) / band.half_width for own, band in zip(ours, watch.bands, strict=True)])
    at = np.unravel_index(np.argmax(shares), shares.shape)
    return Held(watch, float(shares[at]), int(lines[at[1]]["step"]))


def average_lines(lines: Lines, column: str, first: npt.NDArray[np.intp]) -> Values:
    """Return the averages of a column, in logarithms for the gradient's norm."""
    values = np.array([line[column] for line in lines], dtype=np.float64)
    return averages(np.log(values) if column == NORM else values, first)


def without(curve: Curve, number: int) -> Curve:
    """Return the curve of the other repetitions; numbers count from 0."""
    columns = {name: values for name, values in curve.columns.items() if not name.startswith((f"{LOSS}_", f"{NORM}_"))}
    for column in (LOSS, NORM):
        others = [values for other, values in enumerate(curve.repetitions(column)) if other != number]
        if others:
            columns[column] = np.mean(others, axis=0).tolist()
            columns |= {f"{column}_{new}": values for new, values in enumerate(others, 1)}
    return Curve(curve.name, curve.facts, curve.steps, columns, curve.rate_rounding)


def repetition_lines(curve: Curve, number: int, interval: int) -> list[dict[str, Any]]:
    """Return a repetition as the lines of a log."""
    norms = curve.repetitions(NORM)
    columns = {LOSS: curve.repetitions(LOSS)[number]} | ({NORM: norms[number]} if norms else {})
    if RATE in curve.columns:
        columns[RATE] = curve.columns[RATE]
    logged = set(planned_steps(curve.steps[-1], interval))
    rows = [at for at, step in enumerate(curve.steps) if step in logged]
    return [{"step": curve.steps[at], **{name: values[at] for name, values in columns.items()}} for at in rows]


def computed(expected: ExpectedCurve, runs: int) -> ExpectedCurve:
    """Return the same expectation with the band that the repetitions themselves give."""
    return expected.model_copy(update={"band": CurveBand(basis="the repetitions", runs=runs)})


def print_spread(curve: Curve) -> None:
    """Print the spread of averages from repetition to repetition, and the part of it that is the noise of batches."""
    losses = np.array(curve.repetitions(LOSS))
    count = losses.shape[1] // BLOCK
    blocks = losses[:, : count * BLOCK].reshape(len(losses), count, BLOCK)
    spread = blocks.mean(axis=2).var(axis=0, ddof=1)
    # The second differences of a run's own losses, which its trend hardly changes.
    noise = (np.diff(blocks, 2, axis=2) ** 2 / 6).mean(axis=(0, 2)) / BLOCK
    print(f"Standard deviation of averages over {BLOCK} steps, between {len(losses)} repetitions\n")
    print("| steps | of all | of the noise of batches | of the rest | of the rest, upper 95 % limit |\n|---|---|---|---|---|")
    # Slow differences last for whole runs, so each run counts once, however many blocks it has.
    limit = ((len(losses) - 1) / chi_squared_quantile(0.05, len(losses) - 1)) ** 0.5
    ends = [start - 1 for start in PARTS[1:] if start <= count * BLOCK] + [count * BLOCK]
    for begin, end in zip(PARTS, ends, strict=False):
        part = slice((begin - 1) // BLOCK, max(1, end // BLOCK))
        whole, own = spread[part].mean(), noise[part].mean()
        rest = max(0.0, whole - own) ** 0.5
        print(f"| {begin:,} to {end:,} | {whole**0.5:.4f} | {own**0.5:.4f} | {rest:.4f} | {limit * rest:.4f} |")


def chi_squared_quantile(probability: float, freedom: int) -> float:
    """Return the value below which chi squared is with a probability, by the approximation of Wilson and Hilferty (1931).

    >>> round(chi_squared_quantile(0.05, 9), 2)
    3.32
    """
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(probability) * part**0.5) ** 3)


def print_norms(expected: ExpectedCurve, curve: Curve, intervals: Sequence[int]) -> None:
    """Print the largest ratio of a repetition's gradient norm to the mean of all, or the reverse, in averages of logarithms."""
    norms = curve.repetitions(NORM)
    for interval in intervals if norms else ():
        repetitions = [repetition_lines(curve, number, interval) for number in range(len(norms))]
        steps = np.array([line["step"] for line in repetitions[0]])
        first = np.searchsorted(steps, steps - expected.window, side="right")
        found = np.array([average_lines(lines, NORM, first) for lines in repetitions])
        ratio = np.exp(np.abs(found - found.mean(axis=0)).max())
        where = f"over {expected.window} steps, a line every {interval}"
        print(f"\nThe gradient's norm {where}: at most {ratio:.2f} times the mean of all, or the reverse")


def print_false_alarms(expected: ExpectedCurve, curve: Curve, intervals: Sequence[int]) -> None:
    """Print how many repetitions leave the band of the others."""
    count = len(curve.repetitions(LOSS))
    print("\n| band | a line every | repetitions outside | largest part of a half-width | half-width of the loss at the end |")
    print("|---|---|---|---|---|")
    bands = {"of the recipe": expected, "computed": computed(expected, count - 1)}
    for name, wanted in bands.items():
        for interval in intervals:
            held = [hold(wanted, without(curve, number), repetition_lines(curve, number, interval)) for number in range(count)]
            outside = sum(run.watch.left_at is not None for run in held)
            narrow = held[0].watch.bands[0]
            print(
                f"| {name} | {interval} | {outside} of {count} | {max(run.share for run in held):.2f} | "
                f"{narrow.half_width[-1]:.3f} |"
            )


def print_ours(expected: ExpectedCurve, curve: Curve, results: Path) -> None:
    """Print the verdict on each run that was published."""
    logs = [results / LOG, *sorted((results / "seeds").glob(f"*/{LOG}"))]
    print("\n| our run | band | verdict | largest part of a half-width | at step |\n|---|---|---|---|---|")
    for log in logs:
        lines = [line for line in read_lines(log) if line["step"] <= curve.steps[-1]]
        for name, wanted in {"of the recipe": expected, "computed": computed(expected, len(curve.repetitions(LOSS)))}.items():
            held = hold(wanted, curve, lines)
            place = log.relative_to(results)
            print(f"| {place}, {len(lines):,} lines | {name} | {held.watch.verdict} | {held.share:.2f} | {held.step:,} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--curve", type=Path, metavar="FILE", help="another curve than the recipe's")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="our published runs (default: results/RECIPE)")
    parser.add_argument("--intervals", type=int, nargs="+", default=[1, 10], help="steps between lines of a repetition")
    given = parser.parse_args()
    plan = Project(CHECKOUT).plan(given.recipe)
    curve = load_curve(given.curve) if given.curve else plan.curve
    expected = plan.recipe.expect_curve
    if curve is None or expected is None or len(curve.repetitions(LOSS)) < 3:
        parser.error(f"{given.recipe} has no curve with three repetitions or more")
    print_spread(curve)
    print_norms(expected, curve, given.intervals)
    print_false_alarms(expected, curve, given.intervals)
    results = given.results or CHECKOUT / "results" / given.recipe
    if (results / LOG).is_file():
        print_ours(expected, curve, results)


if __name__ == "__main__":
    main()
