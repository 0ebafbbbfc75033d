"""The memory of a machine's devices that a phase of a run needs: by a compiler's figure, otherwise by arithmetic."""

from typing import NamedTuple

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.forecast.pipeline_memory import pipeline_memory, pipeline_of
from relm.forecast.pipeline_table import judge_pipeline
from relm.formatting import format_bytes
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.training.architecture import configuration
from relm.training.machine.fitting_micro_batch import compiled_size, fill_in_micro_batch, memory_of_device
from relm.training.machine.micro_batch_choice import format_at_once, needed_bytes, usable_bytes
from relm.training.micro_batches import micro_batch_size
from relm.training.resources import state_bytes


class MemoryVerdict(NamedTuple):
    """The memory of one device that a phase needs, and the verdict."""

    fits: bool | None
    """None: not known, because the arithmetic is an upper bound."""
    reason: str
    """A phrase with the figures, or the sentence of a refusal."""
    plan: Plan
    """The plan, with the micro-batch that was chosen for a machine that is not the recipe's own."""
    size: int | None = None
    """Sequences of a micro-batch of one process, over all its devices; None: none fits."""
    needed: int | None = None
    """Bytes of one device; None: not known."""
    memory: int | None = None
    """Bytes of one device's memory; None: not known."""


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
