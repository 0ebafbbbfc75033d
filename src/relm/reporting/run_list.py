"""`relm list`: all runs by paper, all runs on one machine, or one run on all machines. Imports no torch."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from relm.errors import RelmError
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_figures import USUAL, PhaseWork, hours_at_peak, price_of_hour
from relm.forecast.memory_verdict import MemoryVerdict, judge_memory
from relm.formatting import format_bytes, format_count, format_price, format_table
from relm.recipes.identity import work_folder
from relm.recipes.machine.machines import Machine, can_place, divides, find_own_machine
from relm.recipes.plan import Plan
from relm.recipes.project import Project, shorten_error
from relm.recipes.run_name import RunName, describe_misnamed
from relm.reporting.paper import find_training_seconds
from relm.reporting.run_record import find_runs, read_object
from relm.training.architecture import configuration
from relm.training.arithmetic import operations, parameters

WIDTH, WIDE = 100, 120
NO_PAPER = "Runs without a paper"
LEGEND = f"""\
Size is the count of parameters. Hours are estimated at {USUAL:.0%} of the machine's published peak;
for a machine without one, they are what all seeds of the run in results/ took.
`relm list NAME` shows a run on every machine, `relm list @MACHINE` all runs on one."""
TARGETS = """\
snakemake results/NAME runs one on its machine, results/NAME@MACHINE on another one;
snakemake results/smoke/NAME runs its small twin on any CPU."""
MACHINE_LEGEND = f"""\
Hours are estimated at {USUAL:.0%} of the devices' published peak. Sequences: the micro-batch of one process.
A GB is 10^9 bytes, so 24 GiB are 25.8 GB. `relm estimate NAME` shows more figures of one run."""


class Figures(NamedTuple):
    """A run on a machine."""

    fits: list[MemoryVerdict]
    """The verdict on each phase; empty if a batch cannot be divided among the devices."""
    hours: float | None
    """At `USUAL` of the published peak; None: no peak is published."""
    price: float | None
    """In US dollars; None: unknown."""


def describe_runs(project: Project) -> str:
    """Return a row for each run, grouped by paper, and a line for each file with faults."""
    plans, faults = _read_plans(project)
    states = {run.name: run.state for run in find_runs(work_folder(), [project]) if run.plan is not None}
    cells = {name: _list_cells(project, plan, states.get(name, "")) for name, plan in plans.items()}
    header, *rows = format_table([["run", "on", "size", "hours", "state", ""], *cells.values()], "<<>><<")
    row_of, lines = dict(zip(plans, rows, strict=True)), [header]
    for heading, group in _group_by_paper(plans.values()):
        lines += ["", *textwrap.wrap(heading, WIDTH)]
        lines += [_cut(row_of[plan.name], WIDTH) for plan in group]
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    wrapped = [line for fault in faults for line in wrapper.wrap(fault)]
    return "\n".join([*lines, "", *wrapped, *([""] if wrapped else []), *([LEGEND] if plans else []), TARGETS])


def describe_machine_runs(project: Project, name: str) -> str:
    """Return a row for each run with its figures on one machine."""
    machine = project.machine(name, f"@{name}")
    plans, faults = _read_plans(project)
    placed = [plan for plan in plans.values() if can_place(plan.recipe, name, machine)]
    left_out = len(plans) - len(placed)
    without = [f"{left_out} recipes cannot run there, because they have no on.{name}.pipeline."] if left_out else []
    table = _machine_table(project, [(plan, name, machine) for plan in placed])
    return "\n".join([f"{name}: {machine.title}", "", *table, "", *faults, *without, MACHINE_LEGEND])


def describe_run_on_machines(project: Project, name: str) -> str:
    """Return a row for each machine that can train a run, with the run's figures there."""
    plan = project.plan(str(RunName.parse(name)._replace(machine=None)))
    machines = project.machines()
    placed = [(plan, each, machine) for each, machine in machines.items() if can_place(plan.recipe, each, machine)]
    own = find_own_machine(plan.recipe)
    on = f"its machine is {own}" if own else f"it names a device, {plan.recipe.run.device}, but no machine"
    title = textwrap.wrap(f"{plan.name}: {plan.recipe.title}; {on}", WIDE)
    return "\n".join([*title, "", *_machine_table(project, placed), "", MACHINE_LEGEND])


def _machine_table(project: Project, placed: Sequence[tuple[Plan, str, Machine]]) -> list[str]:
    rows = [[f"{plan.name}@{name}", *_figure_cells(project, plan, name, machine)] for plan, name, machine in placed]
    table = format_table([["run", "hours", "price", "sequences", "memory of one device"], *rows], "<>>><")
    return [_cut(line, WIDE) for line in table]


def _cut(line: str, width: int) -> str:
    """Return a line, cut with an ellipsis if it is too long."""
    return (line if len(line) <= width else f"{line[: width - 1]}…").rstrip()


def _figure_cells(project: Project, plan: Plan, name: str, machine: Machine) -> list[str]:
    """Return hours, price, micro-batch and memory of a run on a machine, and whether it is done there."""
    published = [f"{plan.name}@{name}", *([plan.name] if find_own_machine(plan.recipe) == name else [])]
    done = "; done" if any(Path("results", each).is_dir() for each in published) else ""
    figures = find_figures(project, plan, name, machine)
    if not figures.fits:
        return ["", "", "", f"global batch not divisible by its {machine.device_count} devices{done}"]
    reason = next((fit.reason for fit in figures.fits if fit.fits is False), None)
    if reason is not None:
        return ["", "", "", f"too large: {reason}{done}"]
    largest = max(figures.fits, key=lambda fit: fit.needed or 0)
    memory = "" if largest.needed is None else format_bytes(largest.needed)
    if largest.memory is not None:
        memory += f" of {format_bytes(largest.memory)}"
    if any(fit.fits is None for fit in figures.fits):
        memory += "; the machine file states no memory" if largest.memory is None else ", may not fit"
    hours = "" if figures.hours is None else format_short_hours(figures.hours)
    price = "" if figures.price is None else format_price(figures.price)
    return [hours, price, str(largest.size or ""), f"{memory}{done}"]


def find_figures(project: Project, plan: Plan, name: str, machine: Machine) -> Figures:
    """Return the figures of a run on a machine."""
    if not all(divides(machine, phase) for phase in plan.recipe.pretrain.values()):
        return Figures([], None, None)
    placed = project.plan(f"{plan.name}@{name}")
    tokenizer = vocabulary(placed)[0]
    config, run = configuration(placed.recipe, tokenizer), placed.recipe.run
    work = [PhaseWork(phase, operations(config, phase, run).hardware) for phase in placed.recipe.pretrain.values()]
    hours, price = hours_at_peak(work, machine, run.float32_matmul_precision), price_of_hour(machine, None)
    hours = None if hours is None else plan.recipe.seeds * hours / USUAL
    cost = None if hours is None or price is None else hours * price
    return Figures([judge_memory(placed, phase, tokenizer) for phase in placed.phases], hours, cost)


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
    faults += [describe_misnamed(path) for path in project.misnamed()]
    return plans, [*faults, *(describe_misnamed(path, "machine") for path in project.misnamed_machines())]


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
    hours = find_figures(project, plan, name, machines[name]).hours if name in machines else None
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
