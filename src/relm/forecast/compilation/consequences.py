"""The lines of `relm estimate` on compiled programs: each one's memory, and the work and the least time of a step.

A step's work is the compiler's count over all its programs, for one device. Its roofline is the longer of two times: of the
operations at the device's published peak, and of the bytes at its memory's published bandwidth (Williams et al. 2009,
"Roofline"). Neither counts validation, the host, or communication between devices.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from relm.devices.peaks import find_accelerator
from relm.errors import RelmError
from relm.formatting import GIB, format_hours, format_row, format_step_time
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.training.machine.compile_record import Compilation, Compiled
from relm.training.micro_batches import micro_batch_size

# Generations whose programs do not keep arrays on the chip between two operations: all bytes that the compiler counts go
# through HBM, and the roofline is a bound. For v5e, v5p and v6e the compiler also counts such arrays (libtpu 0.0.21, see
# tests/forecast/compilation/xla/test_counts.py); for v4 it is unknown.
BOUNDED = ("TPU v2", "TPU v3")


class Ceiling(NamedTuple):
    """The published peaks of one device of a slice: a core of v2 and v3, a chip of later ones."""

    chip: str
    """Its name in `relm.devices.peaks`."""
    flops: float
    """Operations a second, in products of bfloat16."""
    bandwidth: float
    """Bytes a second, to and from its memory."""


class ProgramWork(NamedTuple):
    """The operations and bytes of programs, as the compiler counts them for one device."""

    flops: float
    bytes: float

    def seconds(self, ceiling: Ceiling) -> tuple[float, float]:
        """Return the seconds of the operations at the peak, and of the bytes at the full bandwidth."""
        return self.flops / ceiling.flops, self.bytes / ceiling.bandwidth


def consequences_lines(compilation: Compilation, recipe: Recipe) -> Iterator[str]:
    """Yield a block of lines for each compiled phase; raise RelmError if the recipe has changed since."""
    ceiling, phases = ceiling_of(compilation), dict[str, dict[str, Compiled]]()
    for each in compilation.programs:
        phases.setdefault(each.phase, {})[each.name] = each.compiled
    settings = {name: _require_same(name, compilation, recipe) for name in phases}
    yield f"as compiled for {compilation.topology} by {versions(compilation)}"
    yield f"  the compiler's figures for one {device(compilation)}, and arithmetic with them; nothing was run"
    for name, programs in phases.items():
        count = -(-settings[name].global_batch_size // compilation.micro_batches[name])
        yield f"phase {name}: a step in {count:,} micro-batch{'' if count == 1 else 'es'}"
        yield from (format_row(program, format_memory(compiled)) for program, compiled in programs.items())
        work = step_work(programs, count)
        if work is None:
            yield format_row("time", "unknown: a program of the step does not fit")
        else:
            yield format_row("work", format_work(work))
            yield format_row("roofline", _describe_roofline(work, ceiling, settings[name].steps))


def _describe_roofline(work: ProgramWork, ceiling: Ceiling, steps: int) -> str:
    operations, memory = work.seconds(ceiling)
    seconds = max(operations, memory)
    return (
        f"{'at least ' if ceiling.chip in BOUNDED else ''}{format_step_time(seconds)}: operations "
        f"{format_step_time(operations)} at {ceiling.flops / 1e12:g} TFLOP/s, memory {format_step_time(memory)} at "
        f"{ceiling.bandwidth / 1e9:g} GB/s; {steps:,} steps take {format_hours(steps * seconds / 3600)} h"
    )


def ceiling_of(compilation: Compilation) -> Ceiling:
    """Return the published figures of the chip, divided over its devices."""
    chip = find_accelerator(compilation.topology)
    if chip is None or chip.bfloat16 is None or chip.bandwidth is None:
        raise RelmError(
            f"peak and bandwidth of slice {compilation.topology!r} are unknown; add them in "
            "src/relm/recipes/machine/accelerators.py"
        )
    part = compilation.chips / compilation.devices
    return Ceiling(chip.name, chip.bfloat16 * 1e12 * part, chip.bandwidth * part)


def step_programs(micro_batches: int) -> dict[str, int]:
    """Return the count of each program's runs in a step of the given micro-batches.

    >>> step_programs(1), step_programs(2), step_programs(5)
    ({'step': 1}, {'first': 1, 'last': 1}, {'first': 1, 'between': 3, 'last': 1})
    """
    if micro_batches == 1:
        return {"step": 1}
    between = {"between": micro_batches - 2} if micro_batches > 2 else {}
    return {"first": 1, **between, "last": 1}


def step_work(programs: Mapping[str, Compiled], micro_batches: int) -> ProgramWork | None:
    """Return the work of a step on one device; None: the compiler has no counts for one of its programs."""
    flops = size = 0.0
    for name, times in step_programs(micro_batches).items():
        compiled = programs[name]
        if compiled.flops is None or compiled.bytes_accessed is None:
            return None
        flops, size = flops + compiled.flops * times, size + compiled.bytes_accessed * times
    return ProgramWork(flops, size)


def _require_same(name: str, compilation: Compilation, recipe: Recipe) -> Phase:
    """Return a phase of the recipe, whose batches must be the compiled ones."""
    if name not in recipe.pretrain:
        raise _stale(f"phase {name} was compiled, and the recipe has {', '.join(recipe.pretrain)}")
    phase, run, size = recipe.pretrain[name], recipe.run, compilation.micro_batches[name]
    # On a machine that the recipe does not name, the compiled micro-batch is the chosen one.
    chosen = run.micro_batch_size is None and run.machine is not None and compilation.recipe.endswith(f"@{run.machine}")
    for what, compiled, found in (
        ("global_batch_size", compilation.sequences[name], phase.global_batch_size),
        ("sequences of a micro-batch", size, size if chosen else micro_batch_size(phase, run.micro_batch_size, 1)),
        ("run.activation_checkpointing", compilation.activation_checkpointing, run.activation_checkpointing),
    ):
        if compiled != found:
            raise _stale(f"phase {name}: compiled with {what} {compiled}, the recipe has {found}")
    return phase


def _stale(difference: str) -> RelmError:
    return RelmError(f"{difference}; the recipe changed: compile it again with `relm compile`")


def versions(compilation: Compilation) -> str:
    """Return the compiler's versions in one phrase, all of them if several compiled the programs."""
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
    if compiled.memory is None:
        return "DOES NOT FIT" if compiled.refusal is None else f"DOES NOT FIT: {compiled.refusal.figures}"
    memory = compiled.memory
    return (
        f"fits: {memory.peak / GIB:.2f} GiB at most of {memory.capacity / GIB:.2f}, {memory.peak / memory.capacity:.0%}; "
        f"arguments {memory.arguments / GIB:.2f}, results {memory.results / GIB:.2f} ({memory.shared / GIB:.2f} of them "
        f"in the arguments' memory), temporaries {memory.temporaries / GIB:.2f}, code {memory.code / GIB:.2f}"
    )


def format_work(work: ProgramWork) -> str:
    """Return a phrase on the operations and bytes that were counted."""
    return f"{work.flops:.4g} operations, {work.bytes:.4g} bytes read and written"
