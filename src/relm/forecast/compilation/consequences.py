"""The consequences of compiled programs, by arithmetic: the least time of a step and of a phase. Nothing is run.

A step's work is the compiler's count over all its programs, for one device; its roofline is the larger of two times: that of
the operations at the device's published peak, and that of the bytes at the published bandwidth of its memory (Williams et al.
2009, "Roofline"). Neither counts communication between devices, nor the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relm.devices.peaks import find_accelerator
from relm.errors import RelmError
from relm.forecast.compilation.compiling import HELD_OUT
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.training.machine.compile_record import Compilation, Compiled
from relm.training.micro_batches import micro_batch_size

SHARES = (1.0, 0.5, 0.25)
"""Shares of the roofline's speed that a step may reach."""
# Generations whose programs keep no array in the chip's own memory between two operations: all bytes that the compiler counts
# go through HBM, and the roofline is a bound. In programs for v5e, v5p and v6e such arrays are counted as well (libtpu 0.0.21,
# see tests/forecast/compilation/xla/test_counts.py); for v4 it is not known.
BOUNDED = ("TPU v2", "TPU v3")


class Ceiling(NamedTuple):
    """The published peaks of one device of a slice: a core of v2 and v3, a chip of later ones."""

    chip: str
    """Its name in `relm.devices.peaks`."""
    flops: float
    """Operations a second, in products of bfloat16."""
    bandwidth: float
    """Bytes a second, to and from its memory."""

    @property
    def binds(self) -> bool:
        """True if the roofline is a lower bound, as far as the compiler's counts are right."""
        return self.chip in BOUNDED


class ProgramWork(NamedTuple):
    """The operations and bytes of programs, as the compiler counts them for one device."""

    flops: float
    bytes: float


class Roofline(NamedTuple):
    """The seconds of some work if operations and memory traffic overlap fully."""

    operations: float
    """The time of the operations at the peak."""
    memory: float
    """The time of the bytes at the full bandwidth."""

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.operations, self.memory)

    @property
    def limit(self) -> str:
        """The slower of the two: operations or memory."""
        return "operations" if self.operations >= self.memory else "memory"


class Pace(NamedTuple):
    """A phase at a share of the roofline's speed."""

    share: float
    step_seconds: float
    tokens_per_second: float
    """The rate of the whole slice, padding included; for an encoder and decoder the tokens of the encoder."""
    hours: float
    """The time of all steps and all validations."""
    chip_hours: float


@dataclass(frozen=True)
class PhaseConsequences:
    """The consequences for one phase."""

    name: str
    phase: Phase
    programs: Mapping[str, Compiled]
    micro_batches: int
    chips: float
    validations: int
    """The count of validations on held-out examples."""
    batches: int
    """The most global batches of a validation."""
    ceiling: Ceiling
    step: ProgramWork | None
    """A step's work on one device; None: a program does not fit."""
    validation: ProgramWork | None
    """A validation's work, or one global batch's where the recipe has none; None: it does not fit, or was not compiled."""

    @property
    def tokens(self) -> int:
        """The tokens of a step."""
        return self.phase.global_batch_size * self.phase.sequence_length

    @property
    def roofline(self) -> Roofline | None:
        """The roofline of a step."""
        return None if self.step is None else roofline(self.step, self.ceiling)

    @property
    def validation_roofline(self) -> Roofline | None:
        """The roofline of `validation`."""
        return None if self.validation is None else roofline(self.validation, self.ceiling)

    @property
    def paces(self) -> list[Pace]:
        """The phase at each of `SHARES`; none where its time is not known."""
        step, validation = self.roofline, self.validation_roofline
        if step is None or (self.validations and validation is None):
            return []
        validating = self.validations * validation.seconds if validation else 0.0
        return [self._pace(share, step.seconds, validating) for share in SHARES]

    def _pace(self, share: float, step: float, validating: float) -> Pace:
        seconds, hours = step / share, (self.phase.steps * step + validating) / share / 3600
        return Pace(share, seconds, self.tokens / seconds, hours, hours * self.chips)


def ceiling_of(compilation: Compilation) -> Ceiling:
    """Return the published figures of the chip, divided over its devices."""
    chip = find_accelerator(compilation.topology)
    if chip is None or chip.bfloat16 is None or chip.bandwidth is None:
        raise RelmError(
            f"no peak and bandwidth are known for slice {compilation.topology!r}; see src/relm/recipes/machine/accelerators.py"
        )
    part = compilation.chips / compilation.devices
    return Ceiling(chip.name, chip.bfloat16 * 1e12 * part, chip.bandwidth * part)


def roofline(work: ProgramWork, ceiling: Ceiling) -> Roofline:
    """Return the time of some work at a device's peak and at its bandwidth.

    >>> roofline(ProgramWork(flops=2e12, bytes=8e9), Ceiling("TPU v3", 1e12, 1e9))
    Roofline(operations=2.0, memory=8.0)
    """
    return Roofline(work.flops / ceiling.flops, work.bytes / ceiling.bandwidth)


def step_programs(micro_batches: int) -> dict[str, int]:
    """Return the count of each program's runs in a step of the given micro-batches.

    >>> step_programs(1), step_programs(2), step_programs(5)
    ({'step': 1}, {'first': 1, 'last': 1}, {'first': 1, 'between': 3, 'last': 1})
    """
    if micro_batches == 1:
        return {"step": 1}
    between = {"between": micro_batches - 2} if micro_batches > 2 else {}
    return {"first": 1, **between, "last": 1}


def consequences(compilation: Compilation, recipe: Recipe) -> list[PhaseConsequences]:
    """Return the consequences for each phase that was compiled.

    Raises:
        RelmError: the compilation belongs to an earlier version of the recipe.
    """
    ceiling = ceiling_of(compilation)
    phases = {each.phase: dict[str, Compiled]() for each in compilation.programs}
    for each in compilation.programs:
        phases[each.phase][each.name] = each.compiled
    return [_of_phase(name, found, compilation, recipe, ceiling) for name, found in phases.items()]


def _of_phase(
    name: str, programs: Mapping[str, Compiled], compilation: Compilation, recipe: Recipe, ceiling: Ceiling
) -> PhaseConsequences:
    phase = _same_phase(name, compilation, recipe)
    micro_batches = -(-phase.global_batch_size // compilation.micro_batches[name])
    interval = recipe.run.validation_interval
    validations, batches = (-(-phase.steps // interval), recipe.run.validation_batches) if interval else (0, 1)
    return PhaseConsequences(
        name=name,
        phase=phase,
        programs=programs,
        micro_batches=micro_batches,
        chips=compilation.chips,
        validations=validations,
        batches=batches,
        ceiling=ceiling,
        step=_work([(programs[each], times) for each, times in step_programs(micro_batches).items()]),
        validation=_work([(programs[HELD_OUT], micro_batches * batches)]) if HELD_OUT in programs else None,
    )


def _same_phase(name: str, compilation: Compilation, recipe: Recipe) -> Phase:
    if name not in recipe.pretrain:
        raise _stale(f"phase {name} was compiled, and the recipe has {', '.join(recipe.pretrain)}")
    phase, run, size = recipe.pretrain[name], recipe.run, compilation.micro_batches[name]
    # On a machine that is not the recipe's own, the micro-batch is chosen, and the compiled one is the choice.
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
    return RelmError(f"{difference}; the recipe has changed since: compile it again with `relm compile`")


def _work(programs: Sequence[tuple[Compiled, int]]) -> ProgramWork | None:
    """Return the work of programs, each with its count of runs; None: the compiler has no counts for one of them."""
    flops, size = 0.0, 0.0
    for compiled, times in programs:
        if compiled.flops is None or compiled.bytes_accessed is None:
            return None
        flops, size = flops + compiled.flops * times, size + compiled.bytes_accessed * times
    return ProgramWork(flops, size)
