"""The consequences of compiled programs as text: lines for a terminal, and the phrases that a report shares with them."""

from collections.abc import Iterator

from relm.forecast.compilation.consequences import Ceiling, PhaseConsequences, ProgramWork, Roofline, consequences
from relm.formatting import GIB, format_duration, format_hours, format_row, format_step_time, format_table
from relm.recipes.recipe import Recipe
from relm.training.machine.compile_record import Compilation, Compiled


def consequences_lines(compilation: Compilation, recipe: Recipe, price: float | None = None) -> Iterator[str]:
    """Yield a block of lines for each phase.

    Args:
        price: the price of an hour of one chip, in any currency.
    """
    phases = consequences(compilation, recipe)
    yield f"as compiled for {compilation.topology} by {versions(compilation)}"
    yield f"  the compiler's figures of one {device(compilation)}, and arithmetic on them; nothing was run"
    for phase in phases:
        yield from _phase_lines(phase, price)


def versions(compilation: Compilation) -> str:
    """Return the compiler's versions in one phrase, all of them where programs were compiled by several."""
    found = {name: dict[str, None]() for each in compilation.programs for name in each.compiled.versions}
    for each in compilation.programs:
        for name, version in each.compiled.versions.items():
            found[name][version] = None
    return ", ".join(f"{name} {' and '.join(several)}" for name, several in found.items())


def device(compilation: Compilation) -> str:
    """Return the name of the slice's device: core or chip."""
    return "core" if compilation.devices != compilation.chips else "chip"


def format_memory(compiled: Compiled) -> str:
    """Return a phrase on the memory that a program takes, or would need."""
    if compiled.memory is not None:
        memory = compiled.memory
        return (
            f"fits: {memory.peak / GIB:.2f} GiB at most of {memory.capacity / GIB:.2f}, {memory.peak / memory.capacity:.0%}; "
            f"arguments {memory.arguments / GIB:.2f}, results {memory.results / GIB:.2f} ({memory.shared / GIB:.2f} of them "
            f"in the arguments' memory), temporaries {memory.temporaries / GIB:.2f}, code {memory.code / GIB:.2f}"
        )
    return "DOES NOT FIT" if compiled.refusal is None else f"DOES NOT FIT: {compiled.refusal.figures}"


def format_work(work: ProgramWork) -> str:
    """Return a phrase on the operations and bytes that were counted."""
    return f"{work.flops:.4g} operations, {work.bytes:.4g} bytes read and written"


def format_roofline(found: Roofline, ceiling: Ceiling) -> str:
    """Return a phrase on both times and the one that decides."""
    return (
        f"{'at least ' if ceiling.binds else ''}{format_step_time(found.seconds)}: operations "
        f"{format_step_time(found.operations)} at {ceiling.flops / 1e12:g} TFLOP/s, memory "
        f"{format_step_time(found.memory)} at {ceiling.bandwidth / 1e9:g} GB/s; {found.limit} "
        f"{'decide' if found.limit == 'operations' else 'decides'}"
    )


def assumptions(phase: PhaseConsequences) -> list[str]:
    """Return the assumptions behind the times, each a sentence."""
    sentences = ["Communication between devices, the host, compiling, checkpoints and later evaluation are not counted."]
    if phase.phase.precision == "float32":
        sentences.append(
            "Products of float32 are counted as one bfloat16 pass with rounded factors, the default of PyTorch/XLA; "
            "with three or six passes (run.float32_matmul_precision: high, highest) the same operations take three or "
            "six times as long."
        )
    if not phase.ceiling.binds:
        sentences.append(
            "The bytes may include arrays that never leave the chip, so a step can be faster than the memory's time: only the "
            "operations' time is a lower bound."
        )
    return sentences


def format_validation(phase: PhaseConsequences) -> str:
    """Return a phrase on a phase's time for validation, or for one global batch of it where the recipe has none."""
    found = phase.validation_roofline
    if found is None:
        return "not known"
    if not phase.validations:
        return f"{format_step_time(found.seconds)} a global batch; the recipe does not validate while it trains"
    return (
        f"{phase.validations:,} validations of at most {phase.batches:,} global batches, "
        f"{format_step_time(found.seconds)} each, {format_duration(phase.validations * found.seconds)} in all"
    )


def list_facts(phase: PhaseConsequences) -> list[tuple[str, str]]:
    """Return names and phrases: each program's memory, and the work and the shortest time of a step."""
    facts = [(name, format_memory(compiled)) for name, compiled in phase.programs.items()]
    if phase.step is None or phase.roofline is None:
        return [*facts, ("time", "not known: a program of the step does not fit")]
    facts += [("work", format_work(phase.step)), ("roofline", format_roofline(phase.roofline, phase.ceiling))]
    return [*facts, *([("held-out", format_validation(phase))] if phase.validation is not None or phase.validations else [])]


def list_paces(phase: PhaseConsequences, price: float | None = None) -> list[list[str]]:
    """Return a table, titles first, of a step's time and the phase's hours at shares of the roofline's speed; [] without."""
    if phase.step is None or phase.roofline is None:
        return []
    titles = ["of its speed", "a step", "tokens/s", "hours", "chip-hours", *(["price"] if price is not None else [])]
    rows = [
        [
            f"{pace.share:.0%}",
            format_step_time(pace.step_seconds),
            f"{pace.tokens_per_second:,.0f}",
            format_hours(pace.hours),
            format_hours(pace.chip_hours),
            *([f"{price * pace.chip_hours:,.2f}"] if price is not None else []),
        ]
        for pace in phase.paces
    ]
    return [titles, *rows]


def describe_step(phase: PhaseConsequences) -> str:
    """Return a phrase with the micro-batches of a phase's step."""
    return f"phase {phase.name}: a step in {phase.micro_batches:,} micro-batch{'' if phase.micro_batches == 1 else 'es'}"


def _phase_lines(phase: PhaseConsequences, price: float | None) -> Iterator[str]:
    yield describe_step(phase)
    yield from (format_row(name, text) for name, text in list_facts(phase))
    if paces := list_paces(phase, price):
        yield from format_table(paces, "<" + ">" * (len(paces[0]) - 1), indent="  ")
        yield from (f"  {sentence}" for sentence in assumptions(phase))
