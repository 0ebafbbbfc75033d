"""The cost of one change: a recipe's figures and those of its control, paired by seed.

Two runs with the same seed have the same initial weights and, for the same number of examples, the same order, so their
difference varies less than either figure. For n differences with mean m and standard deviation s, the 95 % interval is
m -+ t(0.975) * s / sqrt(n), with n - 1 degrees of freedom.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.reporting.result_files import read_evaluation

TITLES = """\
| change | figure | without it | with it | difference, 95 % interval | of each seed |
| --- | --- | --- | --- | --- | --- |
"""
Evaluations = Mapping[int, Mapping[str, Any]]
"""Seed -> task -> content of eval/TASK.json."""


def paired_interval(differences: list[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the true difference; None for a single seed."""
    if len(differences) < 2:
        return None
    from scipy.stats import t

    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    half = float(t.ppf(0.975, len(differences) - 1)) * error
    return mean - half, mean + half


def pair_figures(metric: str, control: Evaluations, changed: Evaluations) -> list[tuple[float, float]]:
    """Return TASK.FIGURE of the control and of the recipe, for each seed that has both."""
    pairs = [
        (_figure(control[seed], metric), _figure(changed[seed], metric)) for seed in sorted(control.keys() & changed.keys())
    ]
    return [(without, with_it) for without, with_it in pairs if without is not None and with_it is not None]


def _figure(evaluations: Mapping[str, Any], metric: str) -> float | None:
    task, _, figure = metric.partition(".")
    value = evaluations.get(task, {"figures": {}})["figures"].get(figure)
    return float(value) if isinstance(value, int | float) else None


def format_row(change: str, metric: str, pairs: list[tuple[float, float]]) -> str:
    """Return a row of the table in Markdown."""
    differences = [with_it - without for without, with_it in pairs]
    interval = paired_interval(differences)
    if interval is None:
        words = "one seed, so no interval"
    else:
        words = f"{interval[0]:+.3f} to {interval[1]:+.3f}{'; includes 0' if interval[0] <= 0 <= interval[1] else ''}"
    means = " | ".join(f"{statistics.fmean(values):.3f}" for values in zip(*pairs, strict=True))
    each = ", ".join(f"{value:+.3f}" for value in differences)
    return f"| {change} | {metric} | {means} | {statistics.fmean(differences):+.3f}, {words} | {each} |\n"


def write_differences(key: str, pairs: Mapping[str, tuple[Plan, Plan]], output: Path) -> str:
    """Write the Markdown table of a paper's recipes that have a control; `pairs` maps a name to the plans of both."""
    if not pairs:
        raise RelmError(f"differences: no recipe of paper {key} has a control; add `control` to one, or choose another paper")
    rows = [row for name, (plan, control) in pairs.items() for row in _rows(name, plan, control)]
    with atomic_file(output) as file:
        file.write("".join([TITLES, *rows]).encode())
    return f"compared {len(pairs)} recipes with their controls, {len(rows)} figures; {output}"


def _rows(name: str, plan: Plan, control: Plan) -> Iterator[str]:
    section = plan.recipe.control
    assert section is not None, "the recipe has a control"
    measured, controls = _measured(plan), _measured(control)
    for metric in section.metrics:
        pairs = pair_figures(metric, controls, measured)
        if not pairs:
            raise RelmError(
                f"recipe {name}: control.metrics: no seed has {metric} both here and in {section.recipe}; "
                "add its task to evaluate, or name another figure"
            )
        yield format_row(section.change, metric, pairs)


def _measured(plan: Plan) -> Evaluations:
    return {run.recipe.seed: {task: read_evaluation(path) for task, path in run.evaluations().items()} for run in plan.runs}
