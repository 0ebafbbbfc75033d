"""Targets that are requested by name."""

import contextlib
import difflib
from typing import Any

from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, stop_at_faults
from relm.graph.jobs import require_key
from relm.recipes.controls import differences_table, list_compared


def papers() -> dict[str, list[str]]:
    """Return paper key -> results of all its recipes.

    A recipe with faults raises when it or its paper is requested. Planning all recipes here would slow every command down.
    """
    targets: dict[str, list[str]] = {}
    for name in PROJECT.names():
        with contextlib.suppress(RelmError):
            if (key := PROJECT.paper_and_control(name)[0]) is not None:
                targets.setdefault(key, []).append(f"results/{name}")
    return targets


@report_faults
def compared_figures(wildcards: Any) -> list[str]:
    """Return the figures of all runs of a paper's recipes that have a control, and of their controls."""
    require_key(differences_table(PROJECT, wildcards.paper), wildcards, f"paper {wildcards.paper}")
    return [str(path) for run in list_compared(PROJECT, wildcards.paper) for path in run.evaluations().values()]


@stop_at_faults
def all_results(wildcards: Any) -> list[str]:
    """Return the results of all recipes."""
    if faults := PROJECT.faults():
        listed = "\n".join(f"  {fault}" for fault in faults)
        raise RelmError(
            f"all: {len(faults)} recipes have faults:\n{listed}\n"
            "Correct them or move them away; `snakemake results/NAME` runs any other recipe"
        )
    return [f"results/{name}" for name in PROJECT.names()]


@stop_at_faults
def nearest_target(wildcards: Any) -> list[str]:
    """Raise an error for a target that no rule makes, with the name of the nearest one."""
    results = [f"results/{prefix}{name}" for name in PROJECT.names() for prefix in ("", "smoke/")]
    targets = [*results, "all", "list", *(f"paper_{key}" for key in papers())]
    by_name = {target.removeprefix("results/"): target for target in targets}
    name, _, rest = wildcards.target.partition("@")
    machine = rest.partition("/")[0]
    near = difflib.get_close_matches(name, [*targets, *by_name], n=1, cutoff=0.5)
    hint = (
        f"did you mean {by_name.get(near[0], near[0])}{'@' if machine else ''}{machine}?"
        if near
        else "`snakemake list` shows what there is"
    )
    raise RelmError(f"there is no target {wildcards.target!r}; {hint}")
