"""The report's table of a recipe with several seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relm.recipes.plan import Plan
from relm.reporting.curve import compare_with_curve
from relm.reporting.figures import format_figure


class SeedRow(NamedTuple):
    """One figure of every run, as text."""

    task: str
    name: str
    values: Sequence[str]
    mean: str
    standard_deviation: str


class SeedTable(NamedTuple):
    """The figures that differ between the seeds of a recipe."""

    seeds: Sequence[int]
    fingerprints: Sequence[str]
    rows: Sequence[SeedRow]
    curves: Sequence[str]
    """The verdict on each run's loss curve; empty without a published curve."""


def compare_seeds(plan: Plan, evaluations: Sequence[Mapping[str, Mapping[str, Any]]]) -> SeedTable | None:
    """Return the table from each run's evaluations by task; None for a single run."""
    if len(plan.runs) < 2:
        return None
    first, *others = evaluations
    rows = [
        _row(task, key, [each[task]["figures"][key] for each in evaluations])
        for task in first
        for key, value in first[task]["figures"].items()
        if isinstance(value, int | float) and all(key in other.get(task, {"figures": ()})["figures"] for other in others)
    ]
    watched = [compare_with_curve(run, dict(zip(run.phases, run.logs, strict=True))) for run in plan.runs]
    return SeedTable(
        seeds=[run.recipe.seed for run in plan.runs],
        fingerprints=[run.fingerprint for run in plan.runs],
        rows=[row for row in rows if len(set(row.values)) > 1],
        curves=[run.verdict if run else "" for run in watched] if any(watched) else [],
    )


def _row(task: str, key: str, values: Sequence[float]) -> SeedRow:
    (name, _), *_rest = formatted = [format_figure(key, value) for value in values]
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    return SeedRow(task, name, [text for _, text in formatted], format_figure(key, mean)[1], format_spread(spread))


def format_spread(spread: float) -> str:
    """Return a standard deviation with three digits, or all before the point; a dash for zero.

    >>> format_spread(0.0244905), format_spread(1410.2), format_spread(0.0)
    ('0.0245', '1,410', '–')
    """
    return "–" if not spread else f"{spread:,.0f}" if spread >= 1000 else f"{spread:.3g}"
