"""Answers of a run's plan to rules and to the terminal."""

from collections.abc import Mapping
from typing import Any

from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults


@report_faults
def trainer_threads(wildcards: Any) -> int:
    """Return the CPU threads of the trainer, as the recipe fixes them, over all its processes."""
    run = PROJECT.plan(wildcards.recipe).recipe.run
    return run.threads * run.processes if run.threads else 1_000_000  # Snakemake scales it down to the cores there are


def find_seed(wildcards: Mapping[str, str]) -> int | None:
    """Return the seed of the run that a job trains or evaluates, if its recipe has several; None otherwise."""
    if "recipe" not in wildcards or not wildcards.keys() & {"phase", "task"}:
        return None
    try:
        runs = PROJECT.plan(wildcards["recipe"]).runs
        seeds = {run.fingerprint: run.recipe.seed for run in runs}
    except RelmError:  # the job itself reports it
        return None
    return seeds.get(wildcards.get("fingerprint", "")) if len(runs) > 1 else None
