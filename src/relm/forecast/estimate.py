"""An estimate of a recipe's cost before it is run: parameters, operations, memory, disk, time and money.

It needs only the recipe, and no data. All figures are arithmetic, which bounds activations from above; `relm rehearse` measures
memory and time on this machine. Does not import torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.forecast.checkpoint_interval import Saving, interval_lines
from relm.forecast.compilation.consequences import consequences_lines
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_figures import PhaseWork, machine_lines
from relm.forecast.memory_verdict import MemoryVerdict, judge_memory
from relm.forecast.pipeline_memory import pipeline_memory, pipeline_of
from relm.forecast.pipeline_table import pipeline_lines
from relm.formatting import format_bytes, format_row
from relm.limits import available_memory, free_disk
from relm.models.configuration import Configuration
from relm.recipes.devices import DEVICES
from relm.recipes.machine.machines import Machine
from relm.recipes.phase import Phase
from relm.recipes.plan import Plan
from relm.recipes.run import Run
from relm.training.architecture import configuration
from relm.training.arithmetic import (
    Operations,
    activation_bytes,
    disk_bytes,
    format_state,
    lengths,
    operations,
    parameters,
    sequences_per_device,
    state_bytes,
)
from relm.training.machine.compile_record import find_compilation
from relm.training.machine.fitting_micro_batch import format_at_once


class PhaseEstimate(NamedTuple):
    """The figures of one phase."""

    name: str
    phase: Phase
    run: Run
    operations: Operations
    """The operations of a step."""
    fit: MemoryVerdict
    """The verdict on the memory of the machine's devices."""

    @property
    def tokens(self) -> int:
        """The tokens of all steps, padding included; for an encoder and decoder those of the encoder."""
        return self.phase.steps * self.phase.global_batch_size * self.phase.sequence_length


def describe_estimate(
    plan: Plan,
    price: float | None,
    machines: Mapping[str, Machine] | None = None,
) -> str:
    """Return a table for each phase, and for all of them together, with hours on these `machines` or on the plan's.

    `price` is that of an hour of one device (for a TPU: of one chip), in any currency; None: those of the machines' files.
    """
    if price is not None and not 0 <= price < float("inf"):
        raise RelmError(f"--price-per-hour: expected a number from 0 on, found {price}")
    tokenizer, origin = vocabulary(plan)
    config = configuration(plan.recipe, tokenizer)
    kinds = parameters(config)
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in kinds._asdict().items() if count)
    lines = [
        f"{plan.name}: {plan.recipe.title}",
        *([] if plan.machine is None else [format_row("machine", f"{plan.recipe.run.machine}: {plan.machine.title}")]),
        format_row("vocabulary", f"{config.vocabulary_size:,} rows; {origin}"),
        format_row("parameters", f"{kinds.total:,}: {counts}"),
    ]
    estimates = []
    for name in plan.phases:
        estimates.append(_phase_estimate(plan, name, config, tokenizer))
        lines += ["", *_phase_lines(estimates[-1], config, plan.work)]
    known = machines or ({} if plan.machine is None else {str(plan.recipe.run.machine): plan.machine})
    seeds = plan.recipe.seeds
    work = seeds * [PhaseWork(estimate.phase, estimate.operations.hardware) for estimate in estimates]
    lines += ["", *_total_lines(seeds * estimates, seeds), *machine_lines(work, plan.recipe.run, known, price)]
    sizes = [disk_bytes(config, each.phase, each.run).checkpoint for each in estimates]
    savings = [Saving(each.name, part, size) for each, part, size in zip(estimates, work, sizes, strict=False)]
    lines += interval_lines(savings, plan.recipe.run, plan.machine)
    return "\n".join([*lines, *compiled_lines(plan)])


def _phase_estimate(plan: Plan, name: str, config: Configuration, tokenizer: TokenizerFacts) -> PhaseEstimate:
    fit = judge_memory(plan, name, tokenizer)
    phase, run = plan.recipe.pretrain[name], fit.plan.recipe.run
    return PhaseEstimate(name, phase, run, operations(config, phase, run), fit)


def _phase_lines(estimate: PhaseEstimate, config: Configuration, work: Path) -> Iterator[str]:
    phase, counted, where = estimate.phase, estimate.operations, lengths(estimate.phase)
    yield (
        f"phase {estimate.name}: {phase.objective}, {phase.steps:,} steps of {phase.global_batch_size:,} sequences of "
        f"{phase.sequence_length:,} tokens, {phase.precision}, {phase.optimizer.name}"
    )
    target = f", and as many targets of {where.target:,}" if where.target else ""
    yield format_row(
        "tokens",
        f"{estimate.tokens:,}; {estimate.tokens // phase.steps:,} a step{target}; {where.scored:,} of a sequence scored",
    )
    again = f", {counted.recomputed:.3g} repeated for activations that are not kept" if counted.recomputed else ""
    yield format_row(
        "operations",
        f"{counted.model:.3g} a step (forward {counted.forward:.3g}, backward {counted.backward:.3g}){again}; "
        f"{phase.steps * counted.hardware:.3g} in all",
    )
    pipeline, in_main_memory = pipeline_of(estimate.run, estimate.name), DEVICES[estimate.run.device].in_main_memory
    if pipeline is None or in_main_memory:
        yield from _memory_lines(estimate, config)
    if pipeline is not None:
        memory = None if in_main_memory else estimate.fit.memory
        yield from pipeline_lines(pipeline, pipeline_memory(config, phase, pipeline), memory)
    files, free = disk_bytes(config, phase, estimate.run), free_disk(work)
    yield format_row(
        "disk",
        f"{format_bytes(files.total)} of {format_bytes(free)} free: {files.checkpoints} checkpoints of "
        f"{format_bytes(files.checkpoint)} and a model of {format_bytes(files.model)}{_warning(files.total, free)}",
    )
    yield format_row("time here", f"relm rehearse {estimate.fit.plan.name} --phase {estimate.name} measures it")


def _memory_lines(estimate: PhaseEstimate, config: Configuration) -> Iterator[str]:
    phase, run = estimate.phase, estimate.run
    sequences, state = sequences_per_device(phase, run), state_bytes(config, phase.optimizer)
    yield format_row("memory", f"at least {_format_memory(state.total, run)}, and activations of {format_at_once(sequences)}")
    activations = activation_bytes(config, phase, run, sequences)
    most = f", activations at most {format_bytes(activations)}" if activations else ""
    yield format_row("", f"by arithmetic: {format_state(state)}{most}")
    if estimate.fit.memory is not None:
        verdict = {True: "yes", False: "NO", None: "unknown"}[estimate.fit.fits]
        yield format_row("fits", f"{verdict}: {estimate.fit.reason}")


def _format_memory(needed: int, run: Run) -> str:
    """Return the memory of one process or device; in main memory, also what is available."""
    if not DEVICES[run.device].in_main_memory:
        return f"{format_bytes(needed)} of each device"
    available, total = available_memory(), run.processes * needed
    each = f" ({run.processes} processes of {format_bytes(needed)})" if run.processes > 1 else ""
    return f"{format_bytes(total)}{each} of {format_bytes(available)} available{_warning(total, available)}"


def _warning(needed: int, available: int) -> str:
    return " -- TOO LITTLE" if needed > available else ""


def _total_lines(estimates: Sequence[PhaseEstimate], seeds: int) -> Iterator[str]:
    """Yield the sums over all phases of all seeds."""
    yield "in all" if seeds == 1 else f"in all, {seeds} runs with a seed each, hours included; disk is that of one run"
    yield format_row("tokens", f"{sum(estimate.tokens for estimate in estimates):,}")
    yield format_row("operations", f"{sum(each.phase.steps * each.operations.hardware for each in estimates):.3g}")


def compiled_lines(plan: Plan) -> Iterator[str]:
    """Yield the consequences of compiled programs, or why they are left out; nothing for recipes that are not for a TPU."""
    again, found = f"relm compile {plan.name} --output {plan.compilation}", list[str]()
    try:
        if (compilation := find_compilation(plan)) is not None:
            found = [*consequences_lines(compilation, plan.recipe)]
        elif "compile" in DEVICES[plan.recipe.run.device].steps:
            found = [f"the TPU's own compiler reports, without a TPU, whether it fits and how many bytes a step moves: {again}"]
    except RelmError as error:
        source = plan.compilation if plan.compilation.is_file() else "docs/compiled.json"
        found = [f"{source} is left out: {error}: {again}"]
    yield from ["", *found] if found else []
