"""`relm runs`: all runs of the work folder, as text of a hundred columns or as JSON."""

import datetime
import difflib
import json
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.formatting import format_bytes, format_duration
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.resolved import KeyDifference
from relm.recipes.run_name import RunName
from relm.reporting.figures import FIGURES
from relm.reporting.live_steps import list_live_steps
from relm.reporting.stored_runs import (
    FAILED,
    FINISHED,
    PUBLISHED,
    RUNNING,
    STOPPED,
    ListedRun,
    RequestedRuns,
    list_runs,
)

WIDTH, INDENT = 100, "    "
# The figure that a list shows of an evaluation, if it has one of these; else the first of all.
LEADING = (
    "nats_per_token",
    "loss",
    "masked_nats_per_token",
    "pseudo_nats_per_token",
    "strict_accuracy",
    "acc",
)
# SGR codes of a terminal: bold, green, yellow, red, cyan.
COLOURS = {PUBLISHED: "32", FINISHED: "32", RUNNING: "36", STOPPED: "33", FAILED: "31"}


def describe_stored_runs(project: Project, name: str | None, as_json: bool = False, coloured: bool = False) -> str:
    """Return all runs of the work folder, or those of one recipe, on its machines too.

    Raises:
        RelmError: there is neither a run nor a recipe of this name.
    """
    work = work_folder()
    runs = list_runs(project, work, Path("results"), list_live_steps())
    if name is not None:
        runs = _require_known(project, name, runs, [run for run in runs if _belongs(name, run.run.name)])
    if as_json:
        return json.dumps([describe_as_json(run) for run in runs], indent=1, ensure_ascii=False)
    if not runs:
        return f"{work}/runs has no run{f' of {name}' if name else ''}; snakemake results/{name or 'NAME'} makes one"
    lines = [line for _, group in groupby(runs, lambda run: run.run.name) for line in _name_lines([*group], coloured)]
    total = sum(run.run.disk.size for run in runs)
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {format_bytes(total)} in {work}/runs"
    old = [run for run in runs if is_old(run) and run.state not in (RUNNING, PUBLISHED)]
    advice = f"; `relm gc` shows what could be removed of {len(old)} that no recipe asks for" if old else ""
    return "\n".join([*lines, count + advice])


def is_old(run: ListedRun) -> bool:
    """Return True if no recipe asks for a run now; where a recipe has faults, nobody knows."""
    return not run.is_requested and run.requested.fault is None


def _belongs(wanted: str, name: str) -> bool:
    """Return True for the run of a name, and for those of the same recipe or twin on other machines."""
    return wanted == name or wanted == str(RunName.parse(name)._replace(machine=None))


def _require_known(project: Project, name: str, runs: Sequence[ListedRun], found: list[ListedRun]) -> list[ListedRun]:
    if found or RunName.parse(name).recipe in project.names():
        return found
    known = sorted({run.run.name for run in runs} | set(project.names()))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`relm runs` lists all runs, `relm list` all recipes"
    raise RelmError(f"there is no run and no recipe {name!r}; {hint}")


# --- text --------------------------------------------------------------------------------------------------------------------


def _name_lines(runs: Sequence[ListedRun], coloured: bool) -> Iterator[str]:
    yield _paint(runs[0].run.name, "1", coloured) + _describe_recipe(runs[0].requested)
    for run in runs:
        yield _main_line(run, coloured)
        for text in _details(run):
            yield from textwrap.wrap(
                text,
                WIDTH,
                initial_indent=INDENT,
                subsequent_indent=INDENT + "  ",
                break_on_hyphens=False,
                break_long_words=True,
            )
    yield ""


def _describe_recipe(requested: RequestedRuns) -> str:
    if not requested.exists:
        return f"{INDENT}no such recipe now"
    return f"{INDENT}its recipe has faults" if requested.fault else ""


def _main_line(run: ListedRun, coloured: bool) -> str:
    """Return the line of one run: fingerprint, state, step, size and last change."""
    state = _paint(f"{run.state:<9}", COLOURS[run.state], coloured)
    ago = f"{format_duration(max(0.0, time.time() - run.run.disk.changed))} ago"
    known = "old" if is_old(run) else ""
    row = f"  {run.run.fingerprint}  {known:<3}  {state}  {_format_step(run):<28}"
    return f"{row}  {format_bytes(run.run.disk.size):>8}  {ago:>16}".rstrip()


def _format_step(run: ListedRun) -> str:
    if not run.phases:
        return "not begun"
    of = "" if run.steps is None else f" of {run.steps:,}"
    seed = "" if run.seed is None else f"seed {run.seed}, "
    return f"{seed}step {run.step:,}{of}"


def _details(run: ListedRun) -> Iterator[str]:
    """Yield the texts beneath a run: its figures or loss, its fault, and what differs from the recipe as it is now."""
    figures = format_leading_figures(run.run.figures)
    if figures:
        yield figures
    elif (last := next((phase.last for phase in reversed(run.phases) if phase.last), None)) and "loss" in last:
        yield f"loss {last['loss']:.4f}"
    if run.state == FAILED and run.run.failure:
        yield f"failed: {textwrap.shorten(run.run.failure, 300, placeholder=' ...')}"
    if run.is_requested or not run.requested.plans:
        return
    if run.differences is None:
        yield "its recipe was not recorded, so that nothing can be compared"
    elif not run.differences:
        yield "no key differs: the code or the content of its data has another version now"
    for difference in run.differences or ():
        yield format_difference(difference, "here", "now")


def format_leading_figures(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one figure of each evaluation; an evaluation without figures, such as samples, has none."""
    shown = []
    for task, values in figures.items():
        key = next((key for key in (*LEADING, *FIGURES, *values) if isinstance(values.get(key), int | float)), None)
        if key is not None:
            shown.append(f"{task}.{key} {values[key]:.5g}")
    return ", ".join(shown)


def format_difference(difference: KeyDifference, first: str, second: str) -> str:
    """Return a key with both values.

    >>> format_difference(KeyDifference("pretrain.main.steps", 60, None), "here", "now")
    'pretrain.main.steps: 60 here, absent now'
    """
    return f"{difference.key}: {format_value(difference.first)} {first}, {format_value(difference.second)} {second}"


def format_value(value: Any) -> str:
    """Return a value of a recipe as text, on one line and not too long."""
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return textwrap.shorten(text, 120, placeholder=" ...")


def _paint(text: str, code: str, coloured: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if coloured else text


# --- JSON --------------------------------------------------------------------------------------------------------------------


def describe_as_json(run: ListedRun) -> dict[str, Any]:
    """Return everything that is known of a run as a JSON object."""
    changed = datetime.datetime.fromtimestamp(run.run.disk.changed, datetime.UTC)
    return {
        "name": run.run.name,
        "fingerprint": run.run.fingerprint,
        "folder": str(run.run.folder),
        "state": run.state,
        "seed": run.seed,
        "requested": run.is_requested,
        "recipe": "absent" if not run.requested.exists else "faulty" if run.requested.fault else "present",
        "requested_fingerprints": run.requested.fingerprints,
        "differences": _differences_as_json(run.differences),
        "phases": [{"name": each.name, "step": each.step, "steps": each.steps} for each in run.phases],
        "step": run.step,
        "steps": run.steps,
        "loss": next((phase.last["loss"] for phase in reversed(run.phases) if "loss" in phase.last), None),
        "figures": run.run.figures,
        "failure": run.run.failure if run.state == FAILED else None,
        "bytes": run.run.disk.size,
        "changed": changed.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


def _differences_as_json(differences: Iterable[KeyDifference] | None) -> list[dict[str, Any]] | None:
    if differences is None:
        return None
    return [{"key": each.key, "run": each.first, "recipe": each.second} for each in differences]
