"""Pretraining: one phase of a recipe, from examples to a model folder, and exactly the same after any interruption.

Step s of a phase is a function of the weights after step s - 1 and of s alone: the learning rate, the batch and dropout's
random numbers are computed from s, never carried along.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relm.artifact import sha256_of
from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.examples.attestation import attest, check_attestation
from relm.examples.builders import open_examples
from relm.examples.contract import Batch, Examples, numbers_at
from relm.examples.manifest import TokenizerFacts, read_manifest
from relm.examples.order import rank_positions
from relm.limits import require_time
from relm.models.contract import LanguageModel
from relm.recipe import Phase, Recipe
from relm.training.architecture import Config, configuration, initial_model, unset_model
from relm.training.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint, save_checkpoint
from relm.training.export import is_finished, write_model
from relm.training.interruption import Preempted, StopRequest, run_lock, stop_requests, stop_with_parent
from relm.training.kill_points import kill_point
from relm.training.loss_scaling import LossScaler, build_loss_scaler, finish_gradients
from relm.training.meter import Meter
from relm.training.optimizers import build_optimizer, optimizer_tensors, restore_optimizer, set_learning_rate, weight_type
from relm.training.progress import Progress
from relm.training.resources import require_resources
from relm.training.run_log import RunLog
from relm.training.schedules import learning_rate_scale
from relm.training.step import accumulate_terms, loss_denominators, scored_counts

# After so many steps of a process the rate is steady enough to tell how long the rest will take.
TIMED_STEPS = 20

logger = logging.getLogger(__name__)


def pretrain(
    recipe: Recipe,
    phase: str,
    manifest: Path,
    tokenizer: Path,
    init_from: Path | None,
    model_folder: Path,
    run_fingerprint: str,
) -> str:
    """Train one phase, going on from its newest checkpoint if there is one.

    Beside `model_folder` lie `train.jsonl`, `checkpoints/` and `lock`. Neither the model's bytes nor `train.jsonl`, its times
    aside, depend on how often training was interrupted.

    Args:
        phase: a key of ``recipe.pretrain``.
        manifest: of the examples.
        tokenizer: the `tokenizer.json` that they were made with.
        init_from: Hugging Face folder with the initial weights, of the phase before or as published; None: random.
        model_folder: where the model is written, the sidecar of its weights last.
        run_fingerprint: what the run means; checkpoints of another are refused.

    Returns:
        A sentence that says what was done.

    Raises:
        Preempted: TERM or INT came; a checkpoint was saved, and the same call goes on.
        RelmError: the inputs do not fit together, the machine is too small, or the loss is no longer a number.
    """
    stop_with_parent()
    settings, folder = recipe.pretrain[phase], model_folder.parent
    tokens = tokenizer_facts(manifest, tokenizer)
    identity = {
        "fingerprint": run_fingerprint,
        "phase": phase,
        "manifest_sha256": sha256_of(manifest),
        "start_sha256": sha256_of(init_from / "model.safetensors") if init_from else "random",
    }
    facts = {"step": settings.steps, **identity}
    with run_lock(folder / "lock"):
        if is_finished(model_folder, facts):
            return f"already trained: {model_folder} holds step {settings.steps:,} of phase {phase}"
        config = configuration(recipe, tokens)
        require_resources(config, settings, recipe.run, folder)
        run = PhaseRun(
            recipe=recipe,
            phase=phase,
            settings=settings,
            folder=folder,
            identity=identity,
            examples=open_examples(manifest, "train", settings, derived_seed(recipe.seed, "masks", phase)),
            device=open_device(recipe.run.device, recipe.run.threads),
        )
        learner = begin(run, config, init_from)
        attested(run)
        with stop_requests() as stop:
            summary = train(run, learner, stop)
            facts["parameters"] = learner.model.parameter_count()
            write_model(learner.model, model_folder, tokenizer, tokens.specials, facts)
    return f"{summary}; {model_folder}"


@dataclasses.dataclass(frozen=True)
class PhaseRun:
    """One phase on one device, and the batches of its steps."""

    recipe: Recipe
    phase: str
    settings: Phase
    folder: Path
    identity: Mapping[str, str]
    """What its checkpoints are made for."""
    examples: Examples
    device: Device

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "checkpoints"

    @property
    def micro_batch_size(self) -> int:
        """Sequences a forward pass."""
        return self.recipe.run.micro_batch_size or self.settings.share_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch, by which throughput is counted: of the encoder, padding included."""
        return self.settings.global_batch_size * self.settings.sequence_length

    @property
    def made_on(self) -> dict[str, Any]:
        """What decides how sums are rounded: only where this agrees are two runs the same bytes."""
        return {**self.device.describe(), "micro_batch_size": self.micro_batch_size}

    def epoch(self, step: int) -> float:
        """How often all examples have been read after a step."""
        return step * self.settings.global_batch_size / len(self.examples)

    @property
    def order_seed(self) -> int:
        """Of the permutation in which examples are read."""
        return derived_seed(self.recipe.seed, "order", self.phase)

    def batch(self, step: int) -> Batch:
        """The global batch: example j of step s stands at position (s - 1) * global_batch_size + j."""
        positions = rank_positions(step, self.settings.global_batch_size)
        return self.examples.batch(*numbers_at(self.examples, self.order_seed, positions))

    def micro_batches(self, step: int) -> list[Batch]:
        """The batch of a step in pieces."""
        batch, size = self.batch(step), self.micro_batch_size
        pieces = range(0, self.settings.global_batch_size, size)
        return [{name: array[first : first + size] for name, array in batch.items()} for first in pieces]

    def fed(self, step: int, micro_batches: Iterable[Batch]) -> Iterator[dict[str, Tensor]]:
        """The pieces on the device, one after the other; before each, the generators are seeded for its dropout."""
        for number, batch in enumerate(micro_batches):
            torch.manual_seed(derived_seed(self.recipe.seed, "dropout", self.phase, step, number * self.micro_batch_size))
            yield self.device.feed(batch)


def attested(run: PhaseRun) -> None:
    """Write `order.json`, which says what is read in which order, or compare this run with the one that began.

    Raises:
        RelmError: this run would read something else.
    """
    path = run.folder / "order.json"
    facts = run.examples, run.order_seed, run.phase, run.settings.global_batch_size, run.settings.steps
    if newest_checkpoint(run.checkpoints):
        check_attestation(path, *facts)
    else:
        attest(*facts, path)


@dataclasses.dataclass(frozen=True)
class Learner:
    """What a checkpoint restores: the model and all that changes it."""

    model: LanguageModel
    optimizer: torch.optim.Optimizer
    scaler: LossScaler | None
    meter: Meter

    def tensors(self) -> dict[str, Tensor]:
        """What optimizer and loss scaler remember, by name."""
        return {**optimizer_tensors(self.optimizer, self.model), **(self.scaler.tensors() if self.scaler else {})}


def begin(run: PhaseRun, config: Config, init_from: Path | None) -> Learner:
    """Everything as it was at the newest checkpoint, or as it is before the first step."""
    settings = run.settings
    checkpoint = load_checkpoint(run.checkpoints, run.identity)
    weights_seed = derived_seed(run.recipe.seed, "weights")
    start = unset_model(config) if checkpoint else initial_model(config, weights_seed, init_from)
    model = run.device.place(start).to(weight_type(settings.optimizer))
    model.activation_checkpointing = run.recipe.run.activation_checkpointing
    optimizer = build_optimizer(model, settings.optimizer)
    scaler = build_loss_scaler(settings.loss_scaling, settings.precision, next(model.parameters()).device)
    if scaler is not None:
        scaler.attach(optimizer)
    if checkpoint is None:
        return Learner(model, optimizer, scaler, Meter())
    logger.info("%s: going on from step %s of %s", checkpoint.folder, f"{checkpoint.step:,}", f"{settings.steps:,}")
    model.load_state_dict(checkpoint.model)
    remembered = dict(checkpoint.optimizer)
    if scaler is not None:
        scaler.restore({name: remembered.pop(name) for name in scaler.tensors()})
    restore_optimizer(optimizer, model, remembered)
    warn_if_made_elsewhere(checkpoint, run.made_on)
    return Learner(model, optimizer, scaler, Meter(checkpoint.state))


def train(run: PhaseRun, learner: Learner, stop: StopRequest) -> str:
    """Take the steps of a phase that are left; a sentence on all of them.

    Raises:
        Preempted: `stop` was set before the last step.
        RelmError: the loss or the gradient is no longer finite.
    """
    settings, every = run.settings, run.recipe.run
    model, optimizer, scaler, meter = learner.model, learner.optimizer, learner.scaler, learner.meter
    model.train()
    with (
        closing(RunLog(run.folder / "train.jsonl", meter.step)) as log,
        closing(Progress(f"pretrain {run.phase}", meter.step, settings.steps, run.tokens_per_step)) as progress,
    ):
        for step in range(meter.step + 1, settings.steps + 1):
            learning_rate = settings.optimizer.learning_rate * learning_rate_scale(settings.schedule, step, settings.steps)
            set_learning_rate(optimizer, learning_rate)
            micro_batches = run.micro_batches(step)
            counts = [scored_counts(batch, settings.objective) for batch in micro_batches]
            if scaler is not None:
                scaler.begin_step(step)
            loss, _ = accumulate_terms(
                model.terms,
                run.fed(step, micro_batches),
                loss_denominators(counts, settings.loss_shares),
                lambda: run.device.autocast(settings.precision),
                scaler.scale if scaler is not None else None,
            )
            norm = finish_gradients(model.parameters(), scaler, settings.optimizer.gradient_clipping)
            kill_point("gradient")
            optimizer.step()
            optimizer.zero_grad()
            meter.count(loss, norm)
            progress.advance(step)

            stops = bool(stop) and step < settings.steps
            logs = step == 1 or step % every.log_interval == 0 or step == settings.steps
            saves = step % every.checkpoint_interval == 0 or step == settings.steps or stops
            if logs or saves:
                meter.read(last_good=newest_checkpoint(run.checkpoints))
            if logs:
                line = {**meter.line(run.tokens_per_step), **(scaler.line() if scaler is not None else {})}
                log.write({"step": step, "epoch": run.epoch(step), "learning_rate": learning_rate, **line})
                progress.report(meter.loss, meter.tokens_per_second)
            if saves:
                log.sync()
                state = {**run.identity, **meter.state(), "made_on": run.made_on}
                saved = save_checkpoint(run.checkpoints, state, model.state_dict(), learner.tensors(), every.keep_checkpoints)
            if stops:
                raise Preempted(
                    f"stopped by {stop.name} after step {step:,} of {settings.steps:,}, saved in {saved}; "
                    "the same command goes on from there"
                )
            if step - meter.first_step == TIMED_STEPS:
                run.device.synchronise()
                require_time(meter.seconds_per_step * (settings.steps - step), f"pretrain {run.phase}")
    return in_words(run, meter)


def in_words(run: PhaseRun, meter: Meter) -> str:
    """A sentence on all steps of a phase."""
    tokens = run.settings.steps * run.tokens_per_step
    return (
        f"trained phase {run.phase}: {run.settings.steps:,} steps, {tokens:,} tokens in {meter.seconds:,.0f} s "
        f"({tokens / meter.seconds:,.0f} tokens/s), loss {meter.loss:.3f}"
    )


def derived_seed(*words: object) -> int:
    """A seed of 63 bits for one purpose, unlike those of all others.

    >>> derived_seed(0, "dropout", "main", 1, 0) == derived_seed(0, "dropout", "main", 10)
    False
    """
    return int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:8], "little") >> 1


def tokenizer_facts(manifest: Path, tokenizer: Path) -> TokenizerFacts:
    """What the examples say of the tokenizer, which must be the given one.

    Raises:
        RelmError: the tokenizer is absent or another one.
    """
    facts = read_manifest(manifest).tokenizer
    if not tokenizer.exists():
        raise RelmError(f"{tokenizer}: no such file; give the tokenizer of sha256 {facts.sha256}, which made {manifest}")
    found = sha256_of(tokenizer)
    if found != facts.sha256:
        raise RelmError(
            f"{tokenizer}: sha256 is {found}, but {manifest} was made with a tokenizer of sha256 {facts.sha256}; "
            "give the tokenizer that belongs to it, or make the examples again"
        )
    return facts


def warn_if_made_elsewhere(checkpoint: Checkpoint, made_on: Mapping[str, Any]) -> None:
    """Say what makes the rest of a run round differently from its beginning."""
    before = checkpoint.state.get("made_on", {})
    changed = [f"{key} was {before.get(key)}, is {value}" for key, value in made_on.items() if before.get(key) != value]
    if changed:
        logger.warning(
            "%s: %s; going on, but the last bits will differ from an uninterrupted run's", checkpoint.folder, "; ".join(changed)
        )
