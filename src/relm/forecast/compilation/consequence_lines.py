"""`relm.forecast.compilation.consequences` as a person reads it: lines for a terminal, and what a report shares with them."""

from collections.abc import Iterator, Sequence

from relm.errors import RelmError
from relm.forecast.compilation.compile_record import Compilation, Compiled
from relm.forecast.compilation.consequences import Ceiling, PhaseConsequences, ProgramWork, Roofline, consequences
from relm.formatting import GIB, format_duration, format_hours, format_row, format_step_time
from relm.recipes.recipe import Recipe


def consequences_lines(
    compilation: Compilation, recipe: Recipe, only: str | None = None, price: float | None = None
) -> Iterator[str]:
    """A block of lines for each phase.

    Args:
        only: one phase; None: all that were compiled.
        price: of an hour of one chip, in any currency.

    Raises:
        RelmError: the compilation is not of this recipe as it is now, or not of the phase.
    """
    phases = [phase for phase in consequences(compilation, recipe) if only in (None, phase.name)]
    if not phases:
        raise RelmError(f"phase {only} was not compiled; `relm compile {compilation.recipe}` compiles all of them")
    yield f"as compiled for {compilation.topology} by {versions(compilation)}"
    yield f"  the compiler's figures of one {device(compilation)}, and arithmetic on them; nothing was run"
    for phase in phases:
        yield from _phase_lines(phase, price)


def versions(compilation: Compilation) -> str:
    """Of the compiler, in one phrase; all that there were where programs were compiled by several."""
    found = {name: dict[str, None]() for each in compilation.programs for name in each.compiled.versions}
    for each in compilation.programs:
        for name, version in each.compiled.versions.items():
            found[name][version] = None
    return ", ".join(f"{name} {' and '.join(several)}" for name, several in found.items())


def device(compilation: Compilation) -> str:
    """What a device of the slice is: a core or a chip."""
    return "core" if compilation.devices != compilation.chips else "chip"


def memory_in_words(compiled: Compiled) -> str:
    """How much memory a program takes, or how much it would have."""
    if compiled.memory is not None:
        memory = compiled.memory
        return (
            f"fits: {memory.peak / GIB:.2f} GiB at most of {memory.capacity / GIB:.2f}, {memory.peak / memory.capacity:.0%}; "
            f"arguments {memory.arguments / GIB:.2f}, results {memory.results / GIB:.2f} ({memory.shared / GIB:.2f} of them "
            f"in the arguments' place), temporaries {memory.temporaries / GIB:.2f}, code {memory.code / GIB:.2f}"
        )
    return "DOES NOT FIT" if compiled.refusal is None else f"DOES NOT FIT: {compiled.refusal.figures}"


def work_in_words(work: ProgramWork) -> str:
    """What is counted, in one phrase."""
    return f"{work.flops:.4g} operations, {work.bytes:.4g} bytes read and written"


def roofline_in_words(found: Roofline, ceiling: Ceiling) -> str:
    """Both times and which of them decides."""
    return (
        f"{'at least ' if ceiling.binds else ''}{format_step_time(found.seconds)}: operations "
        f"{format_step_time(found.operations)} at {ceiling.flops / 1e12:g} TFLOP/s, memory "
        f"{format_step_time(found.memory)} at {ceiling.bandwidth / 1e9:g} GB/s; {found.limit} "
        f"{'decide' if found.limit == 'operations' else 'decides'}"
    )


def assumptions(phase: PhaseConsequences) -> list[str]:
    """What the times rest on, each a sentence."""
    told = [
        "Neither what devices send to each other nor the host, compiling, checkpoints and evaluation afterwards are counted."
    ]
    if phase.phase.precision == "float32":
        told.append(
            "Products of float32 are taken as one pass of the bfloat16 unit, as PyTorch/XLA has them by itself, their factors "
            "rounded; in three passes or six (high, highest) the same operations take three or six times as long."
        )
    if not phase.ceiling.binds:
        told.append(
            "The bytes may hold arrays that never leave the chip, so that a step could be faster than this by the memory's "
            "time: it is no bound, that of the operations is."
        )
    return told


def look_in_words(phase: PhaseConsequences) -> str:
    """What is held-out looks' part of a phase, or what one global batch of them would take."""
    found = phase.look_roofline
    if found is None:
        return "not known"
    if not phase.looks:
        return f"{format_step_time(found.seconds)} a global batch, of which the recipe takes none while it trains"
    return (
        f"{phase.looks:,} looks of at most {phase.batches:,} global batches, {format_step_time(found.seconds)} each, "
        f"{format_duration(phase.looks * found.seconds)} in all"
    )


def _phase_lines(phase: PhaseConsequences, price: float | None) -> Iterator[str]:
    number = phase.micro_batches
    yield f"phase {phase.name}: a step in {number:,} micro-batch{'' if number == 1 else 'es'}"
    for name, compiled in phase.programs.items():
        yield format_row(name, memory_in_words(compiled))
    if phase.step is None or phase.roofline is None:
        yield format_row("time", "not known: a program of the step does not fit")
        return
    yield format_row("work", work_in_words(phase.step))
    yield format_row("roofline", f"{roofline_in_words(phase.roofline, phase.ceiling)}")
    if phase.look is not None or phase.looks:
        yield format_row("held-out", look_in_words(phase))
    yield from _pace_lines(phase, price)
    for sentence in assumptions(phase):
        yield f"  {sentence}"


def _pace_lines(phase: PhaseConsequences, price: float | None) -> Iterator[str]:
    titles = ["of its speed", "a step", "tokens/s", "hours", "chip-hours", *(["price"] if price is not None else [])]
    yield _cells(titles)
    for pace in phase.paces:
        cost = [f"{price * pace.chip_hours:,.2f}"] if price is not None else []
        hours = [format_hours(pace.hours), format_hours(pace.chip_hours)]
        yield _cells(
            [f"{pace.share:.0%}", format_step_time(pace.step_seconds), f"{pace.tokens_per_second:,.0f}", *hours, *cost]
        )


def _cells(cells: Sequence[str]) -> str:
    return f"  {cells[0]:<12}" + "".join(f"{cell:>14}" for cell in cells[1:])
