"""A run on a machine that is not its recipe's own, with the micro-batch that fits there."""

import dataclasses
from pathlib import Path

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.json_shapes import is_count
from relm.limits import available_memory
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.recipes.run_folder import MACHINES
from relm.training.architecture import configuration
from relm.training.checkpoint_state import read_state
from relm.training.machine.compile_record import Compilation
from relm.training.machine.compiled_table import find_compilation
from relm.training.machine.micro_batch_choice import (
    GIB,
    CompiledSize,
    MicroBatch,
    choose_micro_batch,
    format_at_once,
)


def fill_in_micro_batch(
    plan: Plan, phase: str, tokenizer: TokenizerFacts, resumed: Path | None = None
) -> tuple[Plan, str | None]:
    """Return the plan with a micro-batch for one phase, and a sentence on the choice.

    On the recipe's own machine, and where the recipe gives a size, the plan is unchanged and the sentence None. A run that is
    resumed from the folder `resumed` of its checkpoints keeps the size that was chosen. Raise RelmError if not even one
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
    """Return the compiler's result for a phase: that of `relm compile` in the run's folder, otherwise docs/compiled.json's.

    None where there is none, or where it belongs to an earlier version of the recipe.
    """
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
    """Return the micro-batch of the newest checkpoint; None if there is none, it is damaged, or another machine made it."""
    from relm.training.checkpoints import newest_checkpoint  # imports torch, which an estimate does without

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
