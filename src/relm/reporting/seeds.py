"""The runs of a recipe with `seeds` beside each other: a table for the report, and what is published of each."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relm.artifact import sidecar_of
from relm.recipes.plan import Plan
from relm.recipes.run_folder import WEIGHTS, final_logs
from relm.replay.attested_run import published_name
from relm.reporting.curve import watched_run
from relm.reporting.figures import format_figure

FOLDER = "seeds"
"""Folder in `results/NAME` of the runs after the first."""


@dataclass(frozen=True)
class SeedRow:
    """One figure of all runs."""

    task: str
    name: str
    values: Sequence[str]
    """One for each seed."""
    mean: str
    standard_deviation: str


@dataclass(frozen=True)
class SeedTable:
    """The figures of a recipe's runs that differ between them."""

    seeds: Sequence[int]
    fingerprints: Sequence[str]
    rows: Sequence[SeedRow]
    curves: Sequence[str]
    """The verdict on each run's loss curve; empty without a published one."""


def compare_seeds(plan: Plan, evaluations: Sequence[Mapping[str, Mapping[str, Any]]]) -> SeedTable | None:
    """Return the table of a recipe's runs; None for a single one.

    Args:
        plan: the plan of the first run.
        evaluations: task -> content of eval/TASK.json, of each run in turn.
    """
    if len(plan.runs) < 2:
        return None
    first, *others = evaluations
    rows = [
        _row(task, key, [each[task]["figures"][key] for each in evaluations])
        for task in first
        for key, value in first[task]["figures"].items()
        if isinstance(value, int | float) and all(key in other.get(task, {"figures": ()})["figures"] for other in others)
    ]
    watched = [watched_run(run, dict(zip(run.phases, run.logs, strict=True))) for run in plan.runs]
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
    """Return a standard deviation with three digits or all before the point, a dash for none.

    >>> format_spread(0.0244905), format_spread(1410.2), format_spread(0.0)
    ('0.0245', '1,410', '–')
    """
    return "–" if not spread else f"{spread:,.0f}" if spread >= 1000 else f"{spread:.3g}"


def seed_evaluation_names(run: Plan, evaluations: Mapping[str, Path]) -> dict[str, Path]:
    """Return the figures of a run after the first, by their names in `results/NAME`."""
    return {f"{FOLDER}/{run.recipe.seed}/eval/{task}.json": path for task, path in evaluations.items()}


def published_seeds(plan: Plan) -> dict[str, Path]:
    """Return the files that the runs after the first publish, by their names in `results/NAME`.

    These are figures, logs, and the hashes of checkpoints and weights. The weights themselves stay in the work folder: they
    take as much space as the published model, and `relm reproduce work/runs/NAME/FINGERPRINT` compares with them there.
    """
    files: dict[str, Path] = {}
    for run in plan.runs[1:]:
        folder = f"{FOLDER}/{run.recipe.seed}"
        files |= seed_evaluation_names(run, run.evaluations()) | {
            f"{folder}/{published_name(name, phase, run.phases)}": path
            for phase in run.phases
            for name, path in final_logs(run.run_folder / phase).items()
        }
        sidecar = sidecar_of(run.model_folder(run.phases[-1]) / WEIGHTS)
        files[f"{folder}/{sidecar.name}"] = sidecar
    return files
