"""The memory of a machine's devices that a phase needs, by a compiler's figure or else by arithmetic, and whether it fits.

Imports no torch.
"""

from typing import NamedTuple

from relm.devices.gpus import gpus_here
from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.forecast.pipeline_memory import pipeline_memory, pipeline_of
from relm.forecast.pipeline_table import judge_pipeline
from relm.formatting import GIB, format_bytes
from relm.limits import OVERRIDE, limits_ignored, total_memory
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.training.architecture import configuration
from relm.training.arithmetic import format_state, list_memory_needs, state_bytes
from relm.training.machine.fitting_micro_batch import (
    compiled_size,
    fill_in_micro_batch,
    format_at_once,
    memory_of_device,
    needed_bytes,
    usable_bytes,
)
from relm.training.micro_batches import micro_batch_size

SMALLER = "Make the model smaller (fewer model.layers, or a smaller hidden size), or choose a machine with more memory"


class MemoryVerdict(NamedTuple):
    """The memory of one device that a phase needs, and the verdict."""

    fits: bool | None
    """None: unknown, because the arithmetic is an upper bound."""
    reason: str
    """A phrase with the figures, or the error that no micro-batch fits."""
    plan: Plan
    """The plan, with the micro-batch that was chosen for a machine that the recipe does not name."""
    size: int | None = None
    """Sequences of a micro-batch of one process, over all its devices; None: none fits."""
    needed: int | None = None
    """Bytes of one device; None: unknown."""
    memory: int | None = None
    """Bytes of one device's memory; None: unknown."""


def judge_memory(plan: Plan, phase: str, tokenizer: TokenizerFacts) -> MemoryVerdict:
    """Return the verdict on a phase, with the micro-batch with which it would train."""
    memory = memory_of_device(plan)
    pipeline = pipeline_of(plan.recipe.run, phase)
    if pipeline is not None and not DEVICES[plan.recipe.run.device].in_main_memory:
        ipus = pipeline_memory(configuration(plan.recipe, tokenizer), plan.recipe.pretrain[phase], pipeline)
        fits, reason, needed = judge_pipeline(ipus, memory)
        return MemoryVerdict(fits, reason, plan, pipeline.micro_batch_size, needed, memory)
    try:
        fitted, _ = fill_in_micro_batch(plan, phase, tokenizer)
    except RelmError as error:
        return MemoryVerdict(False, str(error), plan, memory=memory)
    recipe = fitted.recipe
    settings, run = recipe.pretrain[phase], recipe.run
    size = micro_batch_size(settings, run.micro_batch_size, run.processes)
    devices = run.devices_of_process
    at_once = format_at_once(size) + (f", {size // devices:,} on each device" if devices > 1 else "")
    of_memory = "" if memory is None else f" of {format_bytes(memory)}"
    compiled = compiled_size(fitted, phase)
    if compiled is not None and compiled.size == size:
        reason = f"{at_once}: {format_bytes(compiled.needed)}{of_memory} of each device, by the TPU's compiler"
        return MemoryVerdict(compiled.fits, reason, fitted, size, compiled.needed, memory)
    config = configuration(recipe, tokenizer)
    each = needed_bytes(config, settings, run, size)
    shared, least = DEVICES[run.device].in_main_memory, state_bytes(config, settings.optimizer).total
    needed, least = (run.processes * each, run.processes * least) if shared else (each, least)
    reason = f"{at_once}: at most {format_bytes(needed)}{of_memory} of {'memory' if shared else 'each device'}, by arithmetic"
    if memory is None:
        return MemoryVerdict(None, reason, fitted, size, needed)
    usable = usable_bytes(run.device, memory)
    fits = True if needed <= usable else False if least > usable else None
    return MemoryVerdict(fits, reason, fitted, size, needed, memory)


def find_memory_fault(plan: Plan, phase: str, tokenizer: TokenizerFacts, here: bool) -> str | None:
    """Return why a phase cannot fit, with any data; None if it may fit.

    If it trains `here`, all memory of this machine counts, because other programs may end before training begins. Otherwise
    only the memory that the recipe's machine states counts.
    """
    if limits_ignored():
        return None
    where = f"{plan.name}: pretrain.{phase}"
    if DEVICES[plan.recipe.run.device].in_main_memory:
        return _find_lack_of_main_memory(plan, phase, tokenizer, where) if here else None
    if plan.machine is not None and not _is_begun(plan, phase):
        verdict = judge_memory(plan, phase, tokenizer)
        if verdict.fits is False and verdict.needed is None:  # an error with its remedy
            return f"{where}: {verdict.reason}"
        if verdict.fits is False:
            state = format_state(state_bytes(configuration(plan.recipe, tokenizer), plan.recipe.pretrain[phase].optimizer))
            return f"{where} does not fit: {verdict.reason}; of this the state takes {state}. {SMALLER}; {OVERRIDE}=1 tries it"
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
                f"{where} does not fit: {work} take {format_bytes(needed)}{each}, but this machine has "
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
    """Return True if checkpoints exist: they state the micro-batch with which a run resumes."""
    return any((plan.run_folder / phase / "checkpoints").glob("step-*"))
