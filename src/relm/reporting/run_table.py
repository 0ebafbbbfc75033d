"""The table of runs, by paper: each run's device, size, hours on its own machine, and whether it is done. Imports no torch."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path

from relm.errors import RelmError
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_figures import USUAL
from relm.recipes.identity import work_folder
from relm.recipes.machines import find_own_machine
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.reporting.paper import find_training_seconds
from relm.reporting.run_list import TARGETS, find_figures, format_short_hours, group_by_paper, read_plans
from relm.reporting.run_record import read_object
from relm.training.architecture import configuration
from relm.training.arithmetic import parameters

WIDTH = 100
HEADER = ("run", "on", "size", "hours", "state", "")
LEGEND = f"""\
Size is the count of parameters; hours are operations / {USUAL:.0%} of the published peak of the machine,
or, on a machine without one, those that all seeds of the run in results/ took.
`relm list --machines` shows every machine that fits a run, `relm list @MACHINE` all runs on one."""


def describe_table(project: Project) -> str:
    """Return a row for each run, at most `WIDTH` columns wide, by paper, and a line for each file with faults."""
    plans, faults = read_plans(project)
    cells = {name: _list_cells(project, plan) for name, plan in plans.items()}
    rows = [HEADER[:-1], *cells.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER) - 1)]
    lines = [_format_row([*HEADER], widths)]
    for heading, group in group_by_paper(plans.values()):
        lines += ["", *textwrap.wrap(heading, WIDTH)]
        lines += [_format_row([*cells[plan.name], plan.recipe.title], widths) for plan in group]
    wrapped = [line for fault in faults for line in textwrap.wrap(fault, WIDTH, subsequent_indent="    ")]
    return "\n".join([*lines, "", *wrapped, *([""] if wrapped else []), *(LEGEND.splitlines() if plans else ()), TARGETS])


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    *first, title = cells
    sides = ["<", "<", ">", ">", "<"]
    start = "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(first, sides, widths, strict=True))
    room = WIDTH - len(start) - 2
    return f"{start}  {title if len(title) <= room else title[: room - 1] + '…'}".rstrip()


def _list_cells(project: Project, plan: Plan) -> list[str]:
    """Return a run's name, machine, size, hours and state."""
    name, machines = find_own_machine(plan.recipe), project.machines()
    hours = find_figures(project, plan, name, machines[name]).hours if name in machines else None
    if hours is None and (seconds := find_training_seconds(plan)) is not None:
        hours = seconds / 3600
    return [
        plan.name,
        name or plan.recipe.run.device,
        _format_size(plan),
        "" if hours is None else format_short_hours(hours),
        _describe_state(plan),
    ]


def _format_size(plan: Plan) -> str:
    """Return the count of parameters with three digits; an empty string where the recipe describes no model."""
    try:
        facts = vocabulary(plan)[0]
        published = read_object(plan.results / "config.json").get("vocab_size")  # the assumed one may be larger
        if isinstance(published, int):
            facts = dataclasses.replace(facts, vocabulary_size=published)
        count = float(parameters(configuration(plan.recipe, facts)).total)
    except RelmError:
        return ""
    unit = next(unit for unit in ("", "k", "M", "G") if count < 999.5 or unit == "G" or not (count := count / 1000))
    return f"{count:.3g} {unit}".rstrip()


def _describe_state(plan: Plan) -> str:
    if (Path("results") / plan.name).is_dir():
        return "done"
    return "begun" if (work_folder() / "runs" / plan.name).is_dir() else ""
