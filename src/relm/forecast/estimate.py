"""What a recipe will take before it is run: parameters, operations, memory, disk, time and money.

From the recipe alone, before there are data. Memory, disk and operations are arithmetic; time is measured on this machine where
it is the recipe's device, and arithmetic for all others.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from relm.devices.peaks import PEAKS, Peak
from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.forecast.calibration import StepTime, calibrate
from relm.forecast.compiled_estimate import compiled_lines
from relm.forecast.expected_tokenizer import made_tokenizer, tokenizer_of
from relm.limits import available_memory, duration_in_words, size_in_words
from relm.recipes.plan import Plan
from relm.recipes.recipe import Phase, Run
from relm.training.architecture import Config, configuration
from relm.training.arithmetic import Operations, lengths, operations, parameters
from relm.training.resources import devices_of_slice, disk, memory, sequences_per_device

ASSUMED_CHARACTERS, ASSUMED_TOKENS = 256, 32_000
SHARES = (0.2, 0.4, 0.6)
"""Of its published peak that a device may reach: with a small or badly fed model, usually, and at best."""
# run.device -> names in the table of peaks; a CPU's recipe may be meant for any of them.
ELSEWHERE = {
    "cpu": ("L4", "A100", "H100 SXM", "TPU v3", "TPU v4"),
    "cuda": ("V100 SXM2", "T4", "L4", "A10", "A100", "H100 PCIe", "H100 SXM", "H200"),
    "tpu": ("TPU v2", "TPU v3", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e"),
    "ipu": ("IPU GC200",),
}


class PhaseEstimate(NamedTuple):
    """One phase in figures."""

    name: str
    phase: Phase
    operations: Operations
    """Of a step."""
    tokens: int
    """Of all steps, padding included; of an encoder and decoder those of the encoder."""
    time: StepTime | str
    """Of a step on this machine, or why that was not measured."""

    @property
    def seconds(self) -> float | None:
        """Of the whole phase on this machine."""
        return self.phase.steps * self.time.total if isinstance(self.time, StepTime) else None


def describe_estimate(plan: Plan, only: str | None, price: float | None, calibrates: bool, compiled: Path | None = None) -> str:
    """A table for each phase, and for all of them together.

    Args:
        only: one phase; None: all of them.
        price: of an hour of one device, a TPU's being a chip, in any currency.
        calibrates: measure, for some seconds a phase, how fast this machine is.
        compiled: what `relm compile` wrote; None: what it wrote for this recipe into the work folder, if it did.

    Raises:
        RelmError: there is no such phase, the price is no price, the recipe describes no model, or what was compiled is not it.
    """
    if only is not None and only not in plan.phases:
        raise RelmError(f"recipe {plan.name} has no phase {only!r}; it has {', '.join(plan.phases)}")
    if price is not None and not 0 <= price < float("inf"):
        raise RelmError(f"--price-per-hour: expected a number from 0 on, found {price}")
    tokenizer, origin = vocabulary(plan)
    config, run = configuration(plan.recipe, tokenizer), plan.recipe.run
    kinds = parameters(config)
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in kinds._asdict().items() if count)
    lines = [
        f"{plan.name}: {plan.recipe.title}",
        _row("vocabulary", f"{config.vocabulary_size:,} rows; {origin}"),
        _row("parameters", f"{kinds.total:,}: {counts}"),
    ]
    estimates = []
    for name in plan.phases if only is None else [only]:
        estimates.append(_estimated(name, plan.recipe.pretrain[name], config, run, calibrates))
        lines += ["", *_phase_lines(estimates[-1], config, run, plan.work)]
    lines += ["", *_total_lines(estimates, price), *_elsewhere(estimates, run, price)]
    return "\n".join([*lines, *compiled_lines(plan, only, price, compiled)])


def vocabulary(plan: Plan) -> tuple[TokenizerFacts, str]:
    """What is known of a recipe's tokenizer before there are data, or is assumed, and in words how."""
    try:
        return tokenizer_of(plan)
    except RelmError:
        if made_tokenizer(plan) is not None:  # and it is damaged
            raise
        size, words = _assumed_tokens(plan)
        special = {"pad": 0}  # any token will do
        return TokenizerFacts(sha256="", vocabulary_size=size, end_of_text_id=None, special={**special}), words


def _assumed_tokens(plan: Plan) -> tuple[int, str]:
    if plan.tokenizer_model is None:
        return ASSUMED_CHARACTERS, f"{ASSUMED_CHARACTERS} tokens are ASSUMED: the text's characters are not counted yet"
    return ASSUMED_TOKENS, f"{ASSUMED_TOKENS:,} tokens are ASSUMED: {plan.recipe.tokenizer.from_model} is not here yet"


def _estimated(name: str, phase: Phase, config: Config, run: Run, calibrates: bool) -> PhaseEstimate:
    time: StepTime | str = "not measured"
    if run.device != "cpu":
        time = f"not measured: run.device is {run.device}"
    elif calibrates:
        try:
            time = calibrate(config, phase, run)
        except RelmError as error:
            time = f"not measured: {error}"
    tokens = phase.steps * phase.global_batch_size * phase.sequence_length
    return PhaseEstimate(name, phase, operations(config, phase, run), tokens, time)


def _phase_lines(estimate: PhaseEstimate, config: Config, run: Run, work: Path) -> Iterator[str]:
    phase, counted = estimate.phase, estimate.operations
    where = lengths(config, phase)
    yield (
        f"phase {estimate.name}: {phase.objective}, {phase.steps:,} steps of {phase.global_batch_size:,} sequences of "
        f"{phase.sequence_length:,} tokens, {phase.precision}, {phase.optimizer.name}"
    )
    target = f", and as many targets of {where.target:,}" if where.target else ""
    yield _row(
        "tokens",
        f"{estimate.tokens:,}; {estimate.tokens // phase.steps:,} a step{target}; {where.scored:,} of a sequence scored",
    )
    again = f", {counted.recomputed:.3g} once more for activations that are not kept" if counted.recomputed else ""
    yield _row(
        "operations",
        f"{counted.model:.3g} a step (forward {counted.forward:.3g}, backward {counted.backward:.3g}){again}; "
        f"{phase.steps * counted.hardware:.3g} in all",
    )
    yield from _memory_lines(phase, config, run)
    files, free = disk(config, phase, run), _free_disk(work)
    yield _row(
        "disk",
        f"{size_in_words(files.total)} of {size_in_words(free)} free: {files.checkpoints} checkpoints of "
        f"{size_in_words(files.checkpoint)} and a model of {size_in_words(files.model)}{_warning(files.total, free)}",
    )
    yield _row("time here", _time_in_words(estimate, run))


def _memory_lines(phase: Phase, config: Config, run: Run) -> Iterator[str]:
    wanted, sequences, devices = memory(config, phase, run), sequences_per_device(phase, run), devices_of_slice(run)
    needed = run.processes * wanted.peak if run.device == "cpu" else wanted.peak
    available = _available(run)
    there = "of a device that is not here" if available is None else f"of {size_in_words(available)} available"
    if devices > 1:
        there = f"of each of {devices} devices that are not here"
    each = f"{run.processes} processes of {size_in_words(wanted.peak)}, " if run.processes > 1 else ""
    at_once = f"{sequences:,} sequence{'' if sequences == 1 else 's'} at once"
    yield _row(
        "memory",
        f"{size_in_words(needed)} {there}: {each}{at_once}, most at {wanted.peak_moment}"
        + ("" if available is None else _warning(needed, available)),
    )
    parts = {
        "interpreter and libraries": wanted.base,
        "weights": wanted.weights,
        "gradients": wanted.gradients,
        "optimizer": wanted.optimizer,
        "activations": wanted.activations,
    }
    yield _row("", ", ".join(f"{name} {size_in_words(size)}" for name, size in parts.items() if size))


def _available(run: Run) -> int | None:
    """Bytes that the recipe's device has free; None: it is not here."""
    if run.device == "cpu":
        return available_memory()
    if run.device == "cuda":
        import torch

        if torch.cuda.is_available():
            return int(torch.cuda.mem_get_info()[0])
    return None


def _free_disk(folder: Path) -> int:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _warning(needed: int, available: int) -> str:
    return " -- TOO LITTLE" if needed > available else ""


def _time_in_words(estimate: PhaseEstimate, run: Run) -> str:
    time, seconds = estimate.time, estimate.seconds
    if isinstance(time, str) or seconds is None:
        return str(time)
    rate = estimate.operations.hardware / time.total
    compiled = "; without torch.compile" if run.compile else ""
    return (
        f"{duration_in_words(seconds)}: {time.total:.3g} s a step (passes {time.passes:.3g}, update {time.update:.3g}), "
        f"{rate / 1e9:,.0f} GFLOP/s; measured now, {time.sequences} sequences at once, {time.threads} threads{compiled}"
    )


def _total_lines(estimates: Sequence[PhaseEstimate], price: float | None) -> Iterator[str]:
    yield "in all"
    yield _row("tokens", f"{sum(estimate.tokens for estimate in estimates):,}")
    yield _row("operations", f"{sum(each.phase.steps * each.operations.hardware for each in estimates):.3g}")
    seconds = [estimate.seconds for estimate in estimates if estimate.seconds is not None]
    if len(seconds) == len(estimates):
        cost = "" if price is None else f", {price * sum(seconds) / 3600:,.2f} at {price:g} an hour"
        yield _row("time here", f"{duration_in_words(sum(seconds))}{cost}")


def _elsewhere(estimates: Sequence[PhaseEstimate], run: Run, price: float | None) -> Iterator[str]:
    """Hours of one device by arithmetic alone."""
    precisions = sorted({str(estimate.phase.precision) for estimate in estimates})
    yield ""
    yield f"device-hours by arithmetic: operations / (published peak in {' and '.join(precisions)} x the share that is used)"
    yield f"  {'device':<14} {'peak, TFLOP/s':>14}" + "".join(f"{f'at {share:.0%}':>16}" for share in SHARES)
    for peak, teraflops in _devices(run, precisions):
        hours = _hours(estimates, peak)
        if hours is None:
            yield f"  {peak.name:<14} {'none published':>14}"
            continue
        cells = [f"{hours / share:,.2f}" if hours / share >= 0.01 else "< 0.01" for share in SHARES]
        if price is not None:
            cells = [f"{cell} ({price * hours / share:,.2f})" for cell, share in zip(cells, SHARES, strict=True)]
        yield f"  {peak.name:<14} {teraflops:>14}" + "".join(f"{cell:>16}" for cell in cells)
    if price is not None:
        yield f"  in brackets what they cost at {price:g} an hour"


def _devices(run: Run, precisions: Sequence[str]) -> Iterator[tuple[Peak, str]]:
    """The devices of the table, with their peaks in words; one that the recipe itself states comes first."""
    if run.peak_teraflops is not None:
        yield Peak("run's own", "", *[run.peak_teraflops] * 3), f"{run.peak_teraflops:g}"
    for peak in PEAKS:
        if peak.name in ELSEWHERE[run.device]:
            figures = [getattr(peak, precision) for precision in precisions]
            yield peak, " and ".join(f"{figure:g}" for figure in figures if figure is not None)


def _hours(estimates: Sequence[PhaseEstimate], peak: Peak) -> float | None:
    """Device-hours at the whole peak; None: a phase's precision has none."""
    hours = 0.0
    for estimate in estimates:
        teraflops = getattr(peak, estimate.phase.precision)
        if teraflops is None:
            return None
        hours += estimate.phase.steps * estimate.operations.hardware / (teraflops * 1e12) / 3600
    return hours


def _row(name: str, words: str) -> str:
    return f"  {name:<12} {words}"
