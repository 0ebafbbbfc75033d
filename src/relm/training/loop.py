"""Pretraining: one phase of a recipe, from examples to a model folder, with the same result after any interruption.

Step s of a phase depends only on s and on the weights after step s - 1: the learning rate, the batch and dropout's random
numbers are computed from s, never kept as state.
"""

from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from relm.artifact import sha256_of
from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts, read_manifest
from relm.recipes.curves import Curve
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import COMPILED, RECORDS
from relm.training.architecture import configuration
from relm.training.arithmetic import require_resources
from relm.training.checkpoints import newest_checkpoint
from relm.training.curve_watch import open_watch
from relm.training.export import is_finished, write_model
from relm.training.input import Reader
from relm.training.interruption import Preempted, StopRequest, run_lock, stop_requests, stop_with_parent
from relm.training.journal import LogLines, open_journal
from relm.training.learner import Learner, begin
from relm.training.meter import Meter
from relm.training.model_files import checked_weights
from relm.training.phase_run import PhaseRun, attest_order, open_reader
from relm.training.saves import device_figures, open_saves
from relm.training.shard_stamps import Stamps, known_shards, stamps_of
from relm.training.updates import open_updates
from relm.training.validation import HeldOut

# Rounds of a process after which a compiler has seen every shape.
WARM_UP = 3


def pretrain(
    recipe: Recipe,
    phase: str,
    manifest: Path,
    tokenizer: Path,
    init_from: Path | None,
    model_folder: Path,
    run_fingerprint: str,
    optimizer_from: Path | None = None,
    until: int | None = None,
    one_tpu: bool = False,
    resumes_after: int | None = None,
    curve: Curve | None = None,
    programs: Path | None = None,
) -> str:
    """Train one phase, from its newest checkpoint if one exists, and return a one-sentence summary.

    `train.jsonl`, `checkpoints/` and `lock` are written next to `model_folder`. The bytes of the model do not depend on
    interruptions; in `train.jsonl` only times and the marks of interruptions do.

    Args:
        tokenizer: the `tokenizer.json` that the examples of the manifest were built with.
        init_from: Hugging Face folder with the initial weights, from the previous phase or as published; None: random.
        model_folder: folder where the model is written, the sidecar of its weights last.
        run_fingerprint: fingerprint of the recipe; a checkpoint with another one is an error.
        optimizer_from: last checkpoint of the previous phase, to keep its optimizer state; None: a new optimizer.
        until: stop after this step with a checkpoint, and write no model; None: train to the end.
        one_tpu: use only the first of a TPU's devices.
        resumes_after: step of the only checkpoint to resume from, 0 for none; None: the newest intact one.
        curve: the published curve of `recipe.expect_curve`; None: the run is not watched.
        programs: folder for compiled programs, which several runs may share; None: next to `model_folder`.
    """
    stop_with_parent()
    if one_tpu:
        recipe = recipe.model_copy(update={"run": recipe.run.on_one_device()})
    settings, folder, tokens = recipe.pretrain[phase], model_folder.parent, tokenizer_facts(manifest, tokenizer)
    start = checked_weights(init_from) if init_from else "random"
    identity = {"fingerprint": run_fingerprint, "phase": phase, "manifest_sha256": sha256_of(manifest), "start_sha256": start}
    facts: dict[str, Any] = {"step": settings.steps, **identity}
    with (
        closing(open_device(recipe.run, programs or folder / COMPILED, one_tpu)) as device,
        device.translate_errors(),
        run_lock(folder / "lock") if device.rank == 0 else nullcontext(),
    ):
        # If a record is lost, training loads the last checkpoint, writes order.json again, and names a missing log.
        if is_finished(model_folder, facts) and all((folder / name).exists() for name in RECORDS):
            return f"already trained: {model_folder} holds step {settings.steps:,} of phase {phase}"
        config = configuration(recipe, tokens)
        require_resources(config, settings, recipe.run, folder)
        reader, held_out, stamps = open_readers(recipe, phase, manifest, folder, device)
        run = PhaseRun(recipe, phase, settings, folder, identity, reader, device, curve, stamps)
        learner = begin(run, config, init_from, optimizer_from)
        require_step(run, learner, resumes_after)
        with stop_requests() as stop, device_figures(run, learner.meter):
            summary = train(run, learner, held_out, stop, until or settings.steps)
            if run.writes and until is None:
                facts["parameters"] = learner.model.parameter_count()
                write_model(learner.model, model_folder, tokenizer, tokens.specials, facts)
            wait_for_other_ranks(device)
    return f"{summary}; {model_folder}"


def require_step(run: PhaseRun, learner: Learner, wanted: int | None) -> None:
    """Raise unless training begins after the wanted step; otherwise a damaged checkpoint would just be skipped."""
    if wanted is not None and learner.meter.step != wanted:
        raise RelmError(
            f"{run.checkpoints}: training would begin after step {learner.meter.step:,}, expected step {wanted:,}. The "
            "checkpoint of that step is missing or damaged; restore it"
        )


def open_readers(
    recipe: Recipe, phase: str, manifest: Path, folder: Path, device: Device
) -> tuple[Reader, HeldOut | None, Stamps]:
    """Return the readers of training and validation batches, and their shards' stamps; hash shards that are new to this run."""
    resumes, interval = newest_checkpoint(folder / "checkpoints") is not None, recipe.run.validation_interval
    stamps = stamps_of(manifest, ["train"] if interval is None else ["train", "held_out"])
    with known_shards(folder, stamps, resumes, writes=device.rank == 0) as check_content:
        train = open_reader(recipe, phase, manifest, "train", device, check_content)
        if interval is None:
            return train, None, stamps
        held_out = open_reader(recipe, phase, manifest, "held_out", device, check_content)
        return train, HeldOut(held_out, interval, recipe.run.validation_batches), stamps


def train(run: PhaseRun, learner: Learner, held_out: HeldOut | None, stop: StopRequest, last: int) -> str:
    """Take the remaining steps of a phase up to step `last`, and return a summary of the phase so far.

    A round is the device's `updates_per_call` steps, usually one. Log lines, checkpoints and stops happen only between rounds.
    """
    every, device, meter = run.recipe.run, run.device, learner.meter
    require_whole_rounds(run, meter.step, last)
    attest_order(run)
    learner.model.train()
    updates, programs = open_updates(run, learner), None
    # A device that compiles returns a new function in place of the model's.
    compiles = device.traces or updates.forward != learner.model.terms
    with open_journal(run, learner, last) as journal, open_saves(run, learner, journal) as saves:
        lines = LogLines(run, learner, journal, open_watch(run, meter.step), saves.describe_failure)
        for number, given in enumerate(run.reader.rounds(meter.step + 1, last, lambda: bool(stop)), start=1):
            learning_rate = updates.take(given)
            # Compiled now, validation's programs do not count as a shape that changed during the run.
            if held_out is not None and compiles and number == 1:
                held_out.prepare(learner.model, updates.forward)
            journal.advance(given.last)
            saves.check()
            lines.finish()  # the line of the last round, whose figures arrived while this round was launched

            ends = given.last == run.settings.steps
            # Ranks agree on a stop when they exchange counts of labels; otherwise those that continue would wait for ever.
            stops = (given.stops if device.ranks > 1 else bool(stop)) and given.last < last
            logs = given.first == 1 or given.reaches(every.log_interval) or ends
            validates = held_out is not None and (given.reaches(held_out.interval) or ends)
            is_saved = given.reaches(every.checkpoint_interval) or given.last == last or stops
            if is_saved or validates:
                updates.fetch()  # if the device has a separate copy of the model
            if logs or is_saved or validates:
                lines.begin(given, learning_rate, is_written=logs or validates)
            if held_out is not None and validates:
                lines.finish(partial(held_out.figures, learner.model, updates.forward))
            elif is_saved or not lines.can_wait:
                lines.finish()
            if is_saved:
                # A process that is about to end writes in the foreground: it has nothing to train meanwhile.
                continues = given.last < last and not stops
                saved = saves.save(listed=given.reaches(every.checkpoint_interval) or ends, background=continues)
            if stops:
                stop.ends_process = device.ranks > 1
                wait_for_other_ranks(device)
                raise Preempted(describe_stop(run, stop, given.last, saved))
            programs = require_same_programs(device, number, programs)
    return format_summary(run, meter)


def wait_for_other_ranks(device: Device) -> None:
    """Wait for all ranks: once one process ends, a launcher may kill another that is still writing files."""
    if device.ranks > 1:
        device.sum_counts(np.zeros(1, dtype=np.int64))


def require_whole_rounds(run: PhaseRun, step: int, last: int) -> None:
    """Raise if the steps after `step` up to `last` are not a multiple of the device's updates per call."""
    length = run.device.updates_per_call
    if (last - step) % length:
        raise RelmError(
            f"run.pipeline.device_iterations: {length} updates a call do not divide the {last - step:,} steps from {step:,} to "
            f"{last:,}; set a divisor, or resume from the checkpoint of another step"
        )


def describe_stop(run: PhaseRun, stop: StopRequest, step: int, saved: Path) -> str:
    """Return the message for a run that was stopped on request; it names the checkpoint's folder."""
    who = stop.name if stop else "another process"
    return f"stopped by {who} after step {step:,} of {run.settings.steps:,}, saved in {saved}; the same command resumes there"


def require_same_programs(device: Device, rounds: int, programs: int | None) -> int | None:
    """Return the count of compiled programs (None during the warm-up); raise if it has grown: a shape is not static."""
    if rounds < WARM_UP:
        return None
    now = device.programs()
    if programs is not None and now > programs:
        way_out = "" if device.traces else "set run.compile to false, and "
        raise RelmError(
            f"after {rounds} steps another program was compiled ({programs} before, {now} now), so a shape is not static; "
            f"{way_out}report this with the recipe"
        )
    return now


def format_summary(run: PhaseRun, meter: Meter) -> str:
    """Return a one-sentence summary of all steps of a phase so far."""
    tokens = meter.step * run.tokens_per_step
    return (
        f"trained phase {run.phase}: {meter.step:,} steps, {tokens:,} tokens in {meter.seconds:,.0f} s "
        f"({tokens / meter.seconds:,.0f} tokens/s), loss {meter.loss:.3f}"
    )


def tokenizer_facts(manifest: Path, tokenizer: Path) -> TokenizerFacts:
    """Return the manifest's facts on its tokenizer, after comparing the file's sha256 with them."""
    facts = read_manifest(manifest).tokenizer
    if not tokenizer.exists():
        raise RelmError(f"{tokenizer}: no such file; pass the tokenizer of {manifest}, whose sha256 is {facts.sha256}")
    found = sha256_of(tokenizer)
    if found != facts.sha256:
        raise RelmError(
            f"{tokenizer}: sha256 is {found}, but {manifest} was built with a tokenizer of sha256 {facts.sha256}; "
            "pass that tokenizer, or build the examples again"
        )
    return facts
