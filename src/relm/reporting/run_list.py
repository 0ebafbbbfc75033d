"""The list of runs with all their machines: each run once, or all runs on one machine. Imports no torch."""

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from relm.errors import RelmError
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_figures import USUAL, PhaseWork, hours_at_peak, price_of_hour
from relm.forecast.memory_verdict import MemoryVerdict, judge_memory
from relm.formatting import format_bytes, format_price
from relm.recipes.file_names import describe_misnamed, describe_misnamed_machine
from relm.recipes.machine_use import can_place, divides
from relm.recipes.machines import Machine, find_own_machine
from relm.recipes.plan import Plan
from relm.recipes.project import Project, shorten_error
from relm.training.architecture import configuration
from relm.training.arithmetic import operations

WIDTH, INDENT = 120, "    "
NO_PAPER = "Runs without a paper"
LEGEND = f"""\
Hours are arithmetic: operations / {USUAL:.0%} of the published peak of all devices; `relm estimate NAME@MACHINE` has more.
*: the run's own machine. too large: it does not fit into the memory of the devices; ?: it may not fit.
fits: it does, and no peak is published for hours. batch: the devices do not divide the global batch.
A machine with IPUs is listed where the recipe has a pipeline for it.
`relm list @MACHINE` shows memory and micro-batches on one machine.
"""
TARGETS = """\
snakemake results/NAME runs one on its own machine, results/NAME@MACHINE on another one;
snakemake results/smoke/NAME runs its small twin on any CPU."""


class Figures(NamedTuple):
    """A run on a machine."""

    fits: list[MemoryVerdict]
    """The verdicts on the phases; empty if the machine's devices do not divide a batch."""
    hours: float | None
    """At `USUAL` of the published peak; None: no peak is published."""
    price: float | None
    """In US dollars; None: not known."""

    @property
    def verdict(self) -> bool | None:
        """True if all phases fit, False if one does not, None if that of one is not known."""
        found = [fit.fits for fit in self.fits]
        return False if False in found else None if None in found else True


def describe_runs(project: Project) -> str:
    """Return each run once, grouped by paper, with its title, and a cell for each machine that can train."""
    plans, faults = read_plans(project)
    machines = project.machines()
    cells = {
        name: [
            _cell(project, plan, machine, hardware)
            for machine, hardware in machines.items()
            if can_place(plan.recipe, machine, hardware)
        ]
        for name, plan in plans.items()
    }
    width = max((len(cell) for row in cells.values() for cell in row), default=0) + 2
    lines: list[str] = []
    for heading, group in group_by_paper(plans.values()):
        lines += [heading, ""]
        for plan in group:
            lines += [*_title_lines(plan), *_cell_lines(cells[plan.name], width), ""]
    legend = LEGEND.splitlines() if machines and plans else []
    return "\n".join([*lines, *faults, *([""] if faults else []), *legend, TARGETS])


def describe_machine_runs(project: Project, name: str) -> str:
    """Return a row for each run with its figures on one machine.

    Raises:
        RelmError: the machine is unknown.
    """
    machine = project.machine(name, f"@{name}")
    plans, faults = read_plans(project)
    others = [known for known, plan in plans.items() if not can_place(plan.recipe, name, machine)]
    plans = {known: plan for known, plan in plans.items() if known not in others}
    width = max((len(f"{plan}@{name}") for plan in plans), default=0)
    header = f"{'run':<{width}}  {'hours':>8}  {'price':>8}  {'sequences':>9}  memory of one device"
    rows = [f"{f'{plan.name}@{name}':<{width}}  {_row(project, plan, name, machine, width)}" for plan in plans.values()]
    legend = [
        f"Hours at {USUAL:.0%} of the published peak of all devices; sequences are those of a micro-batch of one process.",
        "GB are 10^9 bytes, so 24 GiB are 25.8 GB.",
        f"snakemake results/NAME@{name} runs one; relm estimate NAME@{name} has more figures.",
    ]
    without = [f"{len(others)} recipes have no on.{name}.pipeline, without which they do not run there."] if others else []
    return "\n".join([f"{name}: {machine.title}", "", header, *rows, "", *faults, *without, *legend])


def read_plans(project: Project) -> tuple[dict[str, Plan], list[str]]:
    """Return the plans by name, and a line for each recipe or machine with faults and each file whose name cannot be used."""
    plans, faults = {}, []
    width = max((len(name) for name in project.names()), default=0)
    for name in project.names():
        try:
            plans[name] = project.plan(name)
        except RelmError as error:
            faults.append(f"{name:<{width}}  {_mark(name)}has faults: {shorten_error(error)}")
    for name in project.machine_names():
        try:
            project.machine(name, f"@{name}")
        except RelmError as error:
            faults.append(f"{'@' + name:<{width}}  has faults: {shorten_error(error)}")
    faults += [describe_misnamed(path) for path in project.misnamed()]
    return plans, [*faults, *(describe_misnamed_machine(path) for path in project.misnamed_machines())]


def group_by_paper(plans: Iterable[Plan]) -> Iterator[tuple[str, list[Plan]]]:
    """Yield a heading and the plans of each paper, and at last those without a paper."""
    groups: dict[str, list[Plan]] = {}
    for plan in plans:
        paper = plan.recipe.paper
        groups.setdefault(NO_PAPER if paper is None else f"{paper.title} [paper_{paper.key}]", []).append(plan)
    yield from sorted(groups.items(), key=lambda item: (item[0] == NO_PAPER, item[0]))


def _mark(name: str) -> str:
    return "done  " if (Path("results") / name).is_dir() else ""


def _title_lines(plan: Plan) -> list[str]:
    return textwrap.wrap(f"{plan.name}  {_mark(plan.name)}{plan.recipe.title}", WIDTH, subsequent_indent=INDENT)


def _cell_lines(cells: list[str], width: int) -> Iterator[str]:
    each = max(1, (WIDTH - len(INDENT)) // width)
    for start in range(0, len(cells), each):
        yield (INDENT + "".join(f"{cell:<{width}}" for cell in cells[start : start + each])).rstrip()


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


def _cell(project: Project, plan: Plan, name: str, machine: Machine) -> str:
    figures = find_figures(project, plan, name, machine)
    own = "*" if find_own_machine(plan.recipe) == name else ""
    done = ", done" if (Path("results") / f"{plan.name}@{name}").is_dir() else ""
    return f"{name}{own} {_format_verdict(figures)}{done}"


def _format_verdict(figures: Figures) -> str:
    if not figures.fits:
        return "batch"
    if figures.verdict is False:
        return "too large"
    words = "fits" if figures.hours is None else format_short_hours(figures.hours)
    price = "" if figures.price is None else f" {format_price(figures.price)}"
    return f"{words}{'' if figures.verdict else '?'}{price}"


def _row(project: Project, plan: Plan, name: str, machine: Machine, width: int) -> str:
    figures = find_figures(project, plan, name, machine)
    if not figures.fits:
        return f"its {machine.device_count} devices do not divide the global batch"
    refused = next((fit.reason for fit in figures.fits if fit.fits is False), None)
    if refused is not None:
        return textwrap.shorten(f"too large: {refused}", WIDTH - width - 2, placeholder=" ...")
    hours = "" if figures.hours is None else format_short_hours(figures.hours)
    price = "" if figures.price is None else format_price(figures.price)
    largest = max(figures.fits, key=lambda fit: fit.needed or 0)
    memory = "" if largest.needed is None else format_bytes(largest.needed)
    of = "" if largest.memory is None else f" of {format_bytes(largest.memory)}"
    verdict = "" if figures.verdict else "; the machine's memory is not stated" if largest.memory is None else ", may not fit"
    return f"{hours:>8}  {price:>8}  {largest.size or '':>9}  {memory}{of}{verdict}"


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
