"""Refusal of a phase that cannot fit into memory, by arithmetic alone, before its data are made. Imports no torch."""

from relm.devices.gpus import gpus_here
from relm.examples.manifest import TokenizerFacts
from relm.forecast.memory_verdict import judge_memory
from relm.formatting import GIB, format_bytes
from relm.limits import OVERRIDE, limits_ignored, total_memory
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.training.architecture import configuration
from relm.training.machine.micro_batch_choice import usable_bytes
from relm.training.resources import format_state, list_memory_needs, state_bytes

SMALLER = "Make the model smaller (fewer model.layers, or a smaller hidden size), or choose a machine with more memory"


def find_memory_fault(plan: Plan, phase: str, tokenizer: TokenizerFacts, here: bool) -> str | None:
    """Return why a phase cannot fit, whatever its data are; None if it may.

    If it trains `here`, all memory of this machine counts, used or free: other programs may end before training begins.
    Otherwise only what the recipe's machine states counts.
    """
    if limits_ignored():
        return None
    where = f"{plan.name}: pretrain.{phase}"
    if DEVICES[plan.recipe.run.device].in_main_memory:
        return _find_lack_of_main_memory(plan, phase, tokenizer, where) if here else None
    if plan.machine is not None and not _is_begun(plan, phase):
        verdict = judge_memory(plan, phase, tokenizer)
        if verdict.fits is False and verdict.needed is None:  # the sentence of a refusal, with its remedy
            return f"{where}: {verdict.reason}"
        if verdict.fits is False:
            state = format_state(state_bytes(configuration(plan.recipe, tokenizer), plan.recipe.pretrain[phase].optimizer))
            return f"{where} does not fit: {verdict.reason}; of these the state takes {state}. {SMALLER}; {OVERRIDE}=1 tries it"
    if plan.machine is None and here and DEVICES[plan.recipe.run.device].one_process_each:
        return _find_lack_of_gpu_memory(plan, phase, tokenizer, where)
    return None


def _find_lack_of_main_memory(plan: Plan, phase: str, tokenizer: TokenizerFacts, where: str) -> str | None:
    run, available = plan.recipe.run, total_memory()
    libraries = int(run.processes * DEVICES[run.device].reserved_gib * GIB)
    for needed, work, remedy in list_memory_needs(configuration(plan.recipe, tokenizer), plan.recipe.pretrain[phase], run):
        if needed + libraries > available:
            each = f", and its libraries {format_bytes(libraries)}" if libraries > needed else ""
            return (
                f"{where} does not fit: {work} take {format_bytes(needed)}{each}, and this machine has "
                f"{format_bytes(available)} of memory; {remedy}, or set {OVERRIDE}=1 to try anyway"
            )
    return None


def _find_lack_of_gpu_memory(plan: Plan, phase: str, tokenizer: TokenizerFacts, where: str) -> str | None:
    state = state_bytes(configuration(plan.recipe, tokenizer), plan.recipe.pretrain[phase].optimizer)
    memory = min(gpus_here(), default=0)
    if not memory or state.total <= usable_bytes(plan.recipe.run.device, memory):
        return None
    return (
        f"{where} does not fit: {format_state(state)} take {format_bytes(state.total)} of each GPU, which has "
        f"{format_bytes(memory)}. {SMALLER}; {OVERRIDE}=1 tries it"
    )


def _is_begun(plan: Plan, phase: str) -> bool:
    """Return True if there are checkpoints, which state the micro-batch with which a run is resumed."""
    return any((plan.run_folder / phase / "checkpoints").glob("step-*"))
