"""`relm list`: all runs by paper. Imports no torch."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from relm.errors import RelmError
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_figures import USUAL, PhaseWork, hours_at_peak
from relm.formatting import format_count, format_table
from relm.recipes.identity import work_folder
from relm.recipes.machine.machines import Machine, divides, find_own_machine
from relm.recipes.plan import Plan
from relm.recipes.project import Project, shorten_error
from relm.reporting.paper import find_training_seconds
from relm.reporting.run_record import find_runs, read_object
from relm.training.architecture import configuration
from relm.training.arithmetic import operations, parameters

WIDTH = 100
NO_PAPER = "Runs without a paper"
LEGEND = f"""\
Size is the count of parameters. Hours are estimated at {USUAL:.0%} of the machine's published peak;
for a machine without one, they are what all seeds of the run in results/ took.
`relm estimate NAME` has the hours on every machine, `relm estimate NAME@MACHINE` the memory there."""
TARGETS = """\
snakemake results/NAME runs one on its machine, results/NAME@MACHINE on another one;
snakemake results/smoke/NAME runs its small twin on any CPU."""


def describe_runs(project: Project) -> str:
    """Return a row for each run, grouped by paper, and a line for each file with faults."""
    plans, faults = _read_plans(project)
    states = {run.name: run.state for run in find_runs(work_folder(), [project]) if run.plan is not None}
    cells = {name: _list_cells(project, plan, states.get(name, "")) for name, plan in plans.items()}
    header, *rows = format_table([["run", "on", "size", "hours", "state", ""], *cells.values()], "<<>><<")
    row_of, lines = dict(zip(plans, rows, strict=True)), [header]
    for heading, group in _group_by_paper(plans.values()):
        lines += ["", *textwrap.wrap(heading, WIDTH)]
        lines += [_cut(row_of[plan.name]) for plan in group]
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    wrapped = [line for fault in faults for line in wrapper.wrap(fault)]
    return "\n".join([*lines, "", *wrapped, *([""] if wrapped else []), *([LEGEND] if plans else []), TARGETS])


def _cut(line: str) -> str:
    """Return a line that ends with an ellipsis where it is too long."""
    return (line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…").rstrip()


def _find_hours(plan: Plan, machine: Machine) -> float | None:
    """Return the hours of all seeds at `USUAL` of the peak; None without one, or if the devices do not divide the batch."""
    if not all(divides(machine, phase) for phase in plan.recipe.pretrain.values()):
        return None
    config, run = configuration(plan.recipe, vocabulary(plan)[0]), plan.recipe.run
    work = [PhaseWork(phase, operations(config, phase, run).hardware) for phase in plan.recipe.pretrain.values()]
    hours = hours_at_peak(work, machine, run.float32_matmul_precision)
    return None if hours is None else plan.recipe.seeds * hours / USUAL


def _read_plans(project: Project) -> tuple[dict[str, Plan], list[str]]:
    """Return the plans by name, and a line for each recipe or machine with faults or an unusable file name."""
    plans, faults = {}, []
    width = max((len(name) for name in project.names()), default=0)
    for name in project.names():
        try:
            plans[name] = project.plan(name)
        except RelmError as error:
            done = "done  " if (Path("results") / name).is_dir() else ""
            faults.append(f"{name:<{width}}  {done}has faults: {shorten_error(error)}")
    for name in project.machine_names():
        try:
            project.machine(name, f"@{name}")
        except RelmError as error:
            faults.append(f"{'@' + name:<{width}}  has faults: {shorten_error(error)}")
    return plans, [*faults, *project.misnamed(), *project.misnamed("machine")]


def _group_by_paper(plans: Iterable[Plan]) -> Iterator[tuple[str, list[Plan]]]:
    """Yield a heading and the plans of each paper; plans without a paper come last."""
    groups: dict[str, list[Plan]] = {}
    for plan in plans:
        paper = plan.recipe.paper
        groups.setdefault(NO_PAPER if paper is None else f"{paper.title} [paper_{paper.key}]", []).append(plan)
    yield from sorted(groups.items(), key=lambda item: (item[0] == NO_PAPER, item[0]))


def _list_cells(project: Project, plan: Plan, state: str) -> list[str]:
    """Return a run's name, machine, size, hours, state and title."""
    name, machines = find_own_machine(plan.recipe), project.machines()
    hours = _find_hours(plan, machines[name]) if name in machines else None
    if hours is None and (seconds := find_training_seconds(plan)) is not None:
        hours = seconds / 3600
    return [
        plan.name,
        name or plan.recipe.run.device,
        _format_size(plan),
        "" if hours is None else format_short_hours(hours),
        "done" if (Path("results") / plan.name).is_dir() else state,
        plan.recipe.title,
    ]


def _format_size(plan: Plan) -> str:
    """Return the count of parameters with three digits; empty if the recipe describes no model."""
    try:
        facts = vocabulary(plan)[0]
        published = read_object(plan.results / "config.json").get("vocab_size")  # the assumed one may be larger
        if isinstance(published, int):
            facts = dataclasses.replace(facts, vocabulary_size=published)
        return format_count(parameters(configuration(plan.recipe, facts)).total)
    except RelmError:
        return ""


def format_short_hours(hours: float) -> str:
    """Return hours with two digits or more, minutes below an hour.

    >>> [format_short_hours(hours) for hours in (0.001, 0.26, 3.14, 314.2, 3140)]
    ['< 1 min', '16 min', '3.1 h', '314 h', '3,140 h']
    """
    if hours < 1 / 60:
        return "< 1 min"
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.1f} h" if hours < 100 else f"{hours:,.0f} h"
