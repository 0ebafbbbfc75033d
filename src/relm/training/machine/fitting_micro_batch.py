"""The micro-batch that fits into the memory of a machine's devices: a compiler's figure where there is one, else arithmetic.

Part of the device's memory is reserved, as its declaration states, for a driver, its libraries and an allocator.
"""

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.formatting import GIB, format_bytes
from relm.json_shapes import is_count
from relm.limits import available_memory
from relm.models.configuration import Configuration
from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.devices import DEVICES
from relm.recipes.phase import Phase
from relm.recipes.plan import Plan
from relm.recipes.run import Run
from relm.recipes.run_folder import MACHINES
from relm.training.architecture import configuration
from relm.training.arithmetic import activation_bytes, state_bytes, update_bytes
from relm.training.checkpoint_state import read_state
from relm.training.machine.compile_record import Compilation, find_compilation


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
    """Sequences of one process's forward pass, over all its devices."""
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
    """Return the largest micro-batch that fits into each device, whatever `run.micro_batch_size` says.

    A size that a compiler accepted is chosen; if it rejected one, arithmetic chooses among the smaller ones.
    `memory` is the bytes of one device, its reserve included, and for a CPU those of the machine; None: unknown.
    """
    sizes = possible_sizes(phase, run)
    if not sizes:
        raise RelmError(
            f"{phase.share_size} sequences, a share of the global batch, cannot be divided among the {run.devices_of_process} "
            f"devices of {run.topology}; choose a machine with fewer devices"
        )
    if compiled is not None and compiled.fits and compiled.size in sizes:
        needs = f", which needs {format_bytes(compiled.needed)} of each device" if compiled.needed else ""
        return MicroBatch(compiled.size, f"{format_at_once(compiled.size)}: the compiler accepted this size{needs}")
    if compiled is not None and not compiled.fits:
        sizes = [size for size in sizes if size < compiled.size]
    device, needed = DEVICES[run.device], 0
    available = usable_bytes(run.device, memory or 0) // (run.processes if device.in_main_memory else 1)
    for size in sizes:
        if memory is None or ARCHITECTURES[config.architecture].activations is None:
            return MicroBatch(size, f"{format_at_once(size)}: their memory is unknown")
        needed = needed_bytes(config, phase, run, size)
        if needed <= available:
            return MicroBatch(
                size,
                f"{format_at_once(size)}: with state and activations they need {format_bytes(needed)} at most by "
                f"arithmetic, and {format_bytes(available)} of {format_bytes(memory)} are usable",
            )
    raise RelmError(_too_large(run, needed, available, is_rejected=not sizes))


def needed_bytes(config: Configuration, phase: Phase, run: Run, size: int) -> int:
    """Return an upper bound of the memory of one device, in bytes, for a micro-batch of `size` sequences."""
    activations = activation_bytes(config, phase, run, -(-size // run.devices_of_process)) or 0
    return state_bytes(config, phase.optimizer).total + max(activations, update_bytes(config))


def format_at_once(count: int) -> str:
    """Return a size of a micro-batch, such as `8 sequences at once`."""
    return f"{count:,} sequence{'' if count == 1 else 's'} at once"


def _too_large(run: Run, needed: int, available: int, is_rejected: bool) -> str:
    """Return the error that not even the smallest micro-batch fits."""
    machine = run.machine or run.topology or run.device
    if is_rejected:
        found = f"the compiler rejected the smallest micro-batch on {machine}"
    else:
        found = (
            f"one sequence on each device of {machine} needs {format_bytes(needed)} at most by arithmetic, and "
            f"{format_bytes(available)} are usable"
        )
    less = "Choose a machine with more memory"
    if not run.activation_checkpointing:
        less = f"Set on.{machine}.activation_checkpointing: true in the recipe, or choose a machine with more memory"
    return f"{found}. {less}; on.{machine}.micro_batch_size: {run.devices_of_process} tries it anyway"


def fill_in_micro_batch(
    plan: Plan, phase: str, tokenizer: TokenizerFacts, resumed: Path | None = None
) -> tuple[Plan, str | None]:
    """Return the plan with a micro-batch for one phase, and a sentence on the choice.

    On the machine that the recipe names, and if the recipe states a size, the plan is unchanged and the sentence None. A run
    that resumes from the folder `resumed` of its checkpoints keeps the size that was chosen. Raise RelmError if not even one
    sequence fits on each device.
    """
    if plan.own_machine or plan.recipe.run.micro_batch_size is not None:
        return plan, None
    chosen = None if resumed is None else _recorded(resumed, plan.recipe.run.machine)
    if chosen is None:
        chosen = choose_micro_batch(
            configuration(plan.recipe, tokenizer),
            plan.recipe.pretrain[phase],
            plan.recipe.run,
            memory_of_device(plan),
            compiled_size(plan, phase),
        )
    run = plan.recipe.run.model_copy(update={"micro_batch_size": chosen.size})
    recipe = plan.recipe.model_copy(update={"run": run})
    return dataclasses.replace(plan, recipe=recipe), f"micro-batch of phase {phase}: {chosen.reason}"


def memory_of_device(plan: Plan) -> int | None:
    """Return the bytes of one device of a plan's machine, for a CPU those available here; None: unknown."""
    machine = plan.machine
    if machine is None:
        return None
    if machine.memory_gib is not None:
        return int(machine.memory_gib * GIB)
    return available_memory() if DEVICES[machine.device].in_main_memory else None


def compiled_size(plan: Plan, phase: str) -> CompiledSize | None:
    """Return the compiler's result for a phase; None: no result, or one of an earlier version of the recipe."""
    if plan.recipe.run.topology is None:
        return None
    try:
        found = find_compilation(plan)
    except RelmError:
        return None
    return None if found is None else _size_in(found, plan, phase)


def _size_in(found: Compilation, plan: Plan, phase: str) -> CompiledSize | None:
    run, programs = plan.recipe.run, [each.compiled for each in found.programs if each.phase == phase]
    now = run.topology, run.activation_checkpointing, plan.recipe.pretrain[phase].global_batch_size
    then = found.topology, found.activation_checkpointing, found.sequences.get(phase)
    if now != then or not programs or phase not in found.micro_batches:
        return None
    needed = max((program.memory.peak for program in programs if program.memory is not None), default=0)
    return CompiledSize(found.micro_batches[phase], all(program.fits for program in programs), needed)


def _recorded(checkpoints: Path, machine: str | None) -> MicroBatch | None:
    """Return the micro-batch of the newest checkpoint; None: no checkpoint, a damaged one, or one of another machine."""
    from relm.training.checkpoints import newest_checkpoint  # imports torch, which an estimate does not need

    newest = newest_checkpoint(checkpoints)
    if newest is None:
        return None
    try:
        state = read_state(newest)
        size, made_by = state["made_on"]["micro_batch_size"], state.get(MACHINES, [{"machine": machine}])[-1]["machine"]
    except (RelmError, KeyError, TypeError, IndexError):
        return None
    if made_by != machine:
        return None
    return (
        MicroBatch(size, f"{format_at_once(size)}, as before the interruption ({newest})") if is_count(size) and size else None
    )
