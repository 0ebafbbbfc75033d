"""`relm runs`: all runs of the work folder."""

import difflib
import json
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from relm.errors import RelmError
from relm.formatting import format_bytes, format_duration, format_table
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.run_name import RunName
from relm.reporting.figures import FIGURES
from relm.reporting.run_record import FAILED, PUBLISHED, RUNNING, RunRecord, find_runs

WIDTH = 100


def describe_stored_runs(project: Project, name: str | None, only_running: bool = False) -> str:
    """Return all runs of the work folder, or those of one recipe on any machine."""
    work = work_folder()
    runs = [run for run in find_runs(work, [project]) if not only_running or run.state == RUNNING]
    order = {run.name: number for number, run in enumerate(runs)}
    runs.sort(key=lambda run: (order[run.name], run.plan is None, run.seed or 0, -run.disk.changed))
    if name is not None:
        runs = _require_known(project, name, runs)
    if not runs and only_running:
        return f"nothing is running here in {work}; `relm runs` lists all runs, `relm status NAME` the steps of a recipe"
    if not runs:
        return f"{work}/runs has no run{f' of {name}' if name else ''}; start one: snakemake results/{name or 'NAME'}"
    rows = format_table([_cells(run) for run in runs], "<<<<>>", indent="  ")
    pairs = groupby(zip(runs, rows, strict=True), lambda pair: pair[0].name)
    lines = [line for _, group in pairs for line in _name_lines([*group])]
    total = sum(run.disk.size for run in runs)
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {format_bytes(total)} in {work}/runs"
    old = [run for run in runs if run.is_old and run.state not in (RUNNING, PUBLISHED)]
    advice = f"; {len(old)} of them are old: `relm gc` shows what can be removed" if old else ""
    return "\n".join([*lines, count + advice])


def _require_known(project: Project, name: str, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs of a name, and of the same recipe or twin on other machines."""
    found = [run for run in runs if name in (run.name, str(RunName.parse(run.name)._replace(machine=None)))]
    if found or RunName.parse(name).recipe in project.names():
        return found
    known = sorted({run.name for run in runs} | set(project.names()))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`relm runs` lists all runs, `relm list` all recipes"
    raise RelmError(f"unknown run or recipe {name!r}; {hint}")


def _name_lines(runs: Sequence[tuple[RunRecord, str]]) -> Iterator[str]:
    """Yield the common name of some runs, and for each its row and details."""
    first, _ = runs[0]
    fault = "    its recipe has faults" if first.requested.fault else "" if first.requested.exists else "    its recipe is gone"
    yield first.name + fault
    for run, row in runs:
        yield row
        for text in _details(run):
            yield from textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
    yield ""


def _cells(run: RunRecord) -> list[str]:
    """Return fingerprint, age, state, step, size and last change."""
    of = "" if run.steps is None else f" of {run.steps:,}"
    seed = "" if run.seed is None else f"seed {run.seed}, "
    step = f"{seed}step {run.step:,}{of}" if run.phases else "not begun"
    ago = f"{format_duration(max(0.0, time.time() - run.disk.changed))} ago"
    return [run.fingerprint, "old" if run.is_old else "", run.state, step, format_bytes(run.disk.size), ago]


def _details(run: RunRecord) -> Iterator[str]:
    """Yield a run's details: its figures or progress, its fault, and the keys that differ from the present recipe."""
    for step, working in groupby(sorted(run.working), lambda each: each.name):
        first, *others = working
        yield f"{step}: process {first.pid}{f' and {len(others)} more' if others else ''}"
    locked = run.locked_phase
    yield from (f"{phase.name}: {phase.describe(is_running=True)}" for phase in run.phases if phase.name == locked)
    if figures := format_leading_figures(run.figures):
        yield figures
    elif locked is None and run.loss is not None:
        yield f"loss {run.loss:.4f}"
    if run.state == FAILED and run.failure:
        yield f"failed: {textwrap.shorten(run.failure, 300, placeholder=' ...')}"
    if run.plan is not None or not run.requested.plans:
        return
    if run.differences is None:
        yield "its recipe was not recorded, so it cannot be compared"
    elif not run.differences:
        yield "no key differs: its code or data has changed since"
    for each in run.differences or ():
        yield f"{each.key}: {format_value(each.first)} here, {format_value(each.second)} now"


def format_leading_figures(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the first known figure of each evaluation that has figures."""
    shown = []
    for task, values in figures.items():
        key = next((key for key in (*FIGURES, *values) if isinstance(values.get(key), int | float)), None)
        if key is not None:
            shown.append(f"{task}.{key} {values[key]:.5g}")
    return ", ".join(shown)


def format_value(value: Any) -> str:
    """Return a value of a recipe as one short line."""
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return textwrap.shorten(text, 120, placeholder=" ...")
