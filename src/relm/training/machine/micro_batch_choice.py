"""The micro-batch that fits into a device's memory: a compiler's figure where there is one, otherwise arithmetic.

Of the device's memory a part is reserved, which its declaration states: what a driver, its libraries and an allocator take.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.models.configuration import Configuration
from relm.recipes.devices import DEVICES
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.activations import activation_bytes, update_bytes
from relm.training.resources import state_bytes

GIB = 2**30


class CompiledSize(NamedTuple):
    """A compiler's result for one micro-batch of a phase."""

    size: int
    """Sequences over all devices."""
    fits: bool
    needed: int
    """Peak memory of one device in bytes; 0 if the compiler reports none."""


class MicroBatch(NamedTuple):
    """A chosen micro-batch."""

    size: int
    """Sequences of a forward pass of one process, over all its devices."""
    reason: str
    """A sentence without its full stop."""


def usable_bytes(device: str, memory: int) -> int:
    """Return the part of a device's memory, in bytes, that training can use."""
    declaration = DEVICES[device]
    return max(0, int(memory * (1 - declaration.reserved_share) - declaration.reserved_gib * GIB))


def possible_sizes(phase: Phase, run: Run) -> list[int]:
    """Return the sizes that divide a process's part and a share of the loss, and that its devices divide, largest first."""
    whole, devices = math.gcd(phase.share_size, phase.global_batch_size // run.processes), run.devices_of_process
    return [size for size in range(whole, 0, -1) if whole % size == 0 and size % devices == 0]


def choose_micro_batch(
    config: Configuration, phase: Phase, run: Run, memory: int | None, compiled: CompiledSize | None = None
) -> MicroBatch:
    """Return the largest micro-batch that fits into the memory of each device; `run.micro_batch_size` is ignored.

    A size that a compiler accepted is chosen; one that it rejected is too large, and arithmetic chooses among the smaller ones.
    `memory` is the bytes of one device, its reserve included, and for a CPU those of the machine; None: unknown.
    """
    sizes = possible_sizes(phase, run)
    if not sizes:
        raise RelmError(
            f"the {run.devices_of_process} devices of {run.topology} do not divide a share of the global batch, "
            f"{phase.share_size} sequences; choose a machine with fewer devices"
        )
    if compiled is not None and compiled.fits and compiled.size in sizes:
        needs = f", which needs {format_bytes(compiled.needed)} of each device" if compiled.needed else ""
        return MicroBatch(compiled.size, f"{format_at_once(compiled.size)}: the compiler accepted this size{needs}")
    if compiled is not None and not compiled.fits:
        sizes = [size for size in sizes if size < compiled.size]
    if memory is None or activation_bytes(config, phase, run, 1) is None:
        if not sizes:
            raise RelmError(_too_large(run, 0, 0, refused=True))
        return MicroBatch(sizes[0], f"{format_at_once(sizes[0])}: the memory that they need is not known")
    return _largest_fitting(config, phase, run, memory, sizes)


def _largest_fitting(config: Configuration, phase: Phase, run: Run, memory: int, sizes: Sequence[int]) -> MicroBatch:
    device = DEVICES[run.device]
    available = usable_bytes(run.device, memory) // (run.processes if device.in_main_memory else 1)
    needed = 0
    for size in sizes:
        needed = needed_bytes(config, phase, run, size)
        if needed <= available:
            return MicroBatch(
                size,
                f"{format_at_once(size)}: with state and activations they need {format_bytes(needed)} at most by "
                f"arithmetic, and {format_bytes(available)} of {format_bytes(memory)} can be used",
            )
    raise RelmError(_too_large(run, needed, available, refused=not sizes))


def needed_bytes(config: Configuration, phase: Phase, run: Run, size: int) -> int:
    """Return an upper bound of the memory of one device, in bytes, for a micro-batch of `size` sequences."""
    activations = activation_bytes(config, phase, run, -(-size // run.devices_of_process)) or 0
    return state_bytes(config, phase.optimizer).total + max(activations, update_bytes(config))


def format_at_once(count: int) -> str:
    """Return a size of a micro-batch, such as `8 sequences at once`."""
    return f"{count:,} sequence{'' if count == 1 else 's'} at once"


def _too_large(run: Run, needed: int, available: int, refused: bool) -> str:
    """Return the message that not even the smallest micro-batch fits."""
    machine = run.machine or run.topology or run.device
    if refused:
        found = f"the compiler refused the smallest micro-batch on {machine}"
    else:
        found = (
            f"one sequence on each device of {machine} needs {format_bytes(needed)} at most by arithmetic, and "
            f"{format_bytes(available)} can be used"
        )
    less = "Choose a machine with more memory"
    if not run.activation_checkpointing:
        less = f"Give on.{machine}.activation_checkpointing: true in the recipe, or choose a machine with more memory"
    return f"{found}. {less}; on.{machine}.micro_batch_size: {run.devices_of_process} tries it anyway"
