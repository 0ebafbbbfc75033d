"""The cost of one change: a recipe's figures beside those of its control, paired by seed.

Two runs with the same seed have the same initial weights and, of as many examples, the same order, so their difference varies
less than either. Of n differences with mean m and standard deviation s, the 95 % interval of the true one is
m -+ t(0.975) * s / sqrt(n), with n - 1 degrees of freedom.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.reporting.result_files import read_evaluation


class Difference(NamedTuple):
    """The difference of one figure between a recipe and its control."""

    change: str
    metric: str
    control: tuple[float, ...]
    """The control's figure of each seed that both have."""
    changed: tuple[float, ...]
    """The recipe's own, in the same order."""

    @property
    def differences(self) -> list[float]:
        """The recipe's figure minus its control's, for each seed."""
        return [changed - control for control, changed in zip(self.control, self.changed, strict=True)]

    @property
    def mean(self) -> float:
        """The mean difference."""
        return statistics.fmean(self.differences)

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval of the true difference; None for a single seed."""
        if len(self.control) < 2:
            return None
        from scipy.stats import t

        quantile = float(t.ppf(0.975, len(self.control) - 1))
        return quantile * statistics.stdev(self.differences) / math.sqrt(len(self.control))

    @property
    def is_seen(self) -> bool:
        """True if the interval leaves out 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def find_difference(
    change: str, metric: str, control: Mapping[int, Mapping[str, Any]], changed: Mapping[int, Mapping[str, Any]]
) -> Difference | None:
    """Return the difference of TASK.FIGURE over the seeds that both recipes have; None without such a seed.

    `control` and `changed` map a seed and a task to the content of eval/TASK.json.
    """
    pairs = [
        (ours, theirs)
        for seed in sorted(control.keys() & changed.keys())
        if (ours := _figure(control[seed], metric)) is not None and (theirs := _figure(changed[seed], metric)) is not None
    ]
    if not pairs:
        return None
    return Difference(change, metric, tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))


def _figure(evaluations: Mapping[str, Any], metric: str) -> float | None:
    task, _, figure = metric.partition(".")
    value = evaluations.get(task, {"figures": {}})["figures"].get(figure)
    return float(value) if isinstance(value, int | float) else None


def format_table(differences: Sequence[Difference]) -> str:
    """Return the differences as a table in Markdown, a row each."""
    lines = [
        "| change | figure | without it | with it | difference, 95 % interval | of each seed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in differences:
        half = row.half_width
        interval = "one seed, so no interval" if half is None else f"{row.mean - half:+.3f} to {row.mean + half:+.3f}"
        seen = "" if half is None or row.is_seen else "; not told apart from 0"
        each = ", ".join(f"{value:+.3f}" for value in row.differences)
        means = " | ".join(f"{statistics.fmean(values):.3f}" for values in (row.control, row.changed))
        lines.append(f"| {row.change} | {row.metric} | {means} | {row.mean:+.3f}, {interval}{seen} | {each} |")
    return "\n".join(lines) + "\n"


def write_differences(key: str, pairs: Mapping[str, tuple[Plan, Plan]], output: Path) -> str:
    """Write the Markdown table of a paper's recipes that have a control; `pairs` maps a name to the plans of both."""
    if not pairs:
        raise RelmError(f"differences: no recipe of paper {key} has a control; give `control` in one, or another key")
    rows = [row for name, (plan, control) in pairs.items() for row in _differences(name, plan, control)]
    table = format_table(rows)
    with atomic_file(output) as file:
        file.write(table.encode())
    return f"compared {len(pairs)} recipes with their controls, {len(rows)} figures; {output}"


def _differences(name: str, plan: Plan, control: Plan) -> list[Difference]:
    section = plan.recipe.control
    assert section is not None, "the recipe has one"
    measured, controls = _measured(plan), _measured(control)
    found = []
    for metric in section.metrics:
        row = find_difference(section.change, metric, control=controls, changed=measured)
        if row is None:
            raise RelmError(
                f"recipe {name}: control.metrics: {metric} was not measured both here and in {section.recipe} with one seed; "
                "add its task to evaluate, or name another figure"
            )
        found.append(row)
    return found


def _measured(plan: Plan) -> dict[int, dict[str, Any]]:
    """Return seed -> task -> content of eval/TASK.json."""
    return {run.recipe.seed: {task: read_evaluation(path) for task, path in run.evaluations().items()} for run in plan.runs}
