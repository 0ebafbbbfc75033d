"""What follows from compiled programs by arithmetic: how long a step takes at least, and a phase. Nothing was run.

A step's work is what the compiler counts for all its programs, of one device; its roofline is the larger of two times: that of
the operations at the device's published peak, and that of the bytes at the published bandwidth of its memory (Williams et al.
2009, "Roofline"). Neither of them counts what devices send to each other, nor the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relm.devices.peaks import find_accelerator
from relm.errors import RelmError
from relm.forecast.compilation.compile_record import Compilation, Compiled
from relm.forecast.compilation.compiling import HELD_OUT
from relm.recipes.recipe import Phase, Recipe
from relm.training.micro_batches import micro_batch_size

SHARES = (1.0, 0.5, 0.25)
"""Of the roofline's speed that a step may reach."""
# Generations whose programs keep no array in the chip's own memory between two operations: there all bytes that the compiler
# counts go through HBM, and the roofline is a bound. In programs for v5e, v5p and v6e such arrays are counted as well (libtpu
# 0.0.21, see tests/forecast/compilation/xla/test_counts.py); of v4 it is not known.
BOUNDED = ("TPU v2", "TPU v3")


class Ceiling(NamedTuple):
    """What one device of a slice can do at most: a core of v2 and v3, a chip of later ones."""

    chip: str
    """As in `relm.devices.peaks`."""
    flops: float
    """A second, of products of bfloat16."""
    bandwidth: float
    """Bytes a second, to and from its memory."""

    @property
    def binds(self) -> bool:
        """Whether nothing can be faster than the roofline, as far as the compiler's counts are right."""
        return self.chip in BOUNDED


class ProgramWork(NamedTuple):
    """The operations and bytes of programs, as the compiler counts them for one device."""

    flops: float
    bytes: float


class Roofline(NamedTuple):
    """Seconds that some work takes, were all of it hidden behind the slower of two things."""

    operations: float
    """At the peak."""
    memory: float
    """At the full bandwidth."""

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.operations, self.memory)

    @property
    def limit(self) -> str:
        """What decides: operations or memory."""
        return "operations" if self.operations >= self.memory else "memory"


class Pace(NamedTuple):
    """A phase at a share of the roofline's speed."""

    share: float
    step_seconds: float
    tokens_per_second: float
    """Of the whole slice, padding included; of an encoder and decoder those of the encoder."""
    hours: float
    """Of all steps and of all looks at held-out examples."""
    chip_hours: float


@dataclass(frozen=True)
class PhaseConsequences:
    """What follows for one phase."""

    name: str
    phase: Phase
    programs: Mapping[str, Compiled]
    micro_batches: int
    chips: int
    looks: int
    """How often it looks at held-out examples."""
    batches: int
    """Global batches of a look, or fewer where there are not so many."""
    ceiling: Ceiling
    step: ProgramWork | None
    """Of one device; None: a program does not fit."""
    look: ProgramWork | None
    """Of a look; of one global batch where the recipe has no looks. None: it does not fit, or was not compiled."""

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.phase.global_batch_size * self.phase.sequence_length

    @property
    def roofline(self) -> Roofline | None:
        """Of a step."""
        return None if self.step is None else roofline(self.step, self.ceiling)

    @property
    def look_roofline(self) -> Roofline | None:
        """Of `look`."""
        return None if self.look is None else roofline(self.look, self.ceiling)

    @property
    def paces(self) -> list[Pace]:
        """The phase at each of `SHARES`; none where its time is not known."""
        step, look = self.roofline, self.look_roofline
        if step is None or (self.looks and look is None):
            return []
        looks = self.looks * look.seconds if look else 0.0
        return [self._pace(share, step.seconds, looks) for share in SHARES]

    def _pace(self, share: float, step: float, looks: float) -> Pace:
        seconds, hours = step / share, (self.phase.steps * step + looks) / share / 3600
        return Pace(share, seconds, self.tokens / seconds, hours, hours * self.chips)


def ceiling_of(compilation: Compilation) -> Ceiling:
    """The published figures of the chip, divided over its devices.

    Raises:
        RelmError: nothing is published of such a slice.
    """
    chip = find_accelerator(compilation.topology)
    if chip is None or chip.bfloat16 is None or chip.bandwidth is None:
        raise RelmError(
            f"no peak and bandwidth are known of a slice {compilation.topology!r}; see src/relm/recipes/accelerators.py"
        )
    part = compilation.chips / compilation.devices
    return Ceiling(chip.name, chip.bfloat16 * 1e12 * part, chip.bandwidth * part)


def roofline(work: ProgramWork, ceiling: Ceiling) -> Roofline:
    """How long work takes at a device's peak and at its bandwidth.

    >>> roofline(ProgramWork(flops=2e12, bytes=8e9), Ceiling("TPU v3", 1e12, 1e9))
    Roofline(operations=2.0, memory=8.0)
    """
    return Roofline(work.flops / ceiling.flops, work.bytes / ceiling.bandwidth)


def step_programs(micro_batches: int) -> dict[str, int]:
    """Program -> how often it runs in a step of so many micro-batches.

    >>> step_programs(1), step_programs(2), step_programs(5)
    ({'step': 1}, {'first': 1, 'last': 1}, {'first': 1, 'between': 3, 'last': 1})
    """
    if micro_batches == 1:
        return {"step": 1}
    between = {"between": micro_batches - 2} if micro_batches > 2 else {}
    return {"first": 1, **between, "last": 1}


def consequences(compilation: Compilation, recipe: Recipe) -> list[PhaseConsequences]:
    """What follows for each phase that was compiled.

    Raises:
        RelmError: the compilation is not of this recipe as it is now.
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
    number = -(-phase.global_batch_size // compilation.micro_batches[name])
    wanted = step_programs(number)
    interval = recipe.run.validation_interval
    looks, batches = (-(-phase.steps // interval), recipe.run.validation_batches) if interval else (0, 1)
    step = _work([(programs[each], times) for each, times in wanted.items()])
    look = _work([(programs[HELD_OUT], number * batches)]) if HELD_OUT in programs else None
    return PhaseConsequences(name, phase, programs, number, compilation.chips, looks, batches, ceiling, step, look)


def _same_phase(name: str, compilation: Compilation, recipe: Recipe) -> Phase:
    if name not in recipe.pretrain:
        raise _stale(f"phase {name} was compiled, and the recipe has {', '.join(recipe.pretrain)}")
    phase, run = recipe.pretrain[name], recipe.run
    for what, compiled, found in (
        ("global_batch_size", compilation.sequences[name], phase.global_batch_size),
        ("sequences of a micro-batch", compilation.micro_batches[name], micro_batch_size(phase, run.micro_batch_size, 1)),
        ("run.activation_checkpointing", compilation.activation_checkpointing, run.activation_checkpointing),
    ):
        if compiled != found:
            raise _stale(f"phase {name}: compiled with {what} {compiled}, the recipe has {found}")
    return phase


def _stale(words: str) -> RelmError:
    return RelmError(f"{words}; the recipe has changed since: make it again with `relm compile`")


def _work(programs: Sequence[tuple[Compiled, int]]) -> ProgramWork | None:
    """Of programs that run so often; None: the compiler counted nothing of one of them."""
    flops, size = 0.0, 0.0
    for compiled, times in programs:
        if compiled.flops is None or compiled.bytes_accessed is None:
            return None
        flops, size = flops + compiled.flops * times, size + compiled.bytes_accessed * times
    return ProgramWork(flops, size)
