"""The learner: model, optimizer, loss scaler and meter, restored from the newest checkpoint or new."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relm.models.configuration import Configuration
from relm.models.contract import LanguageModel
from relm.recipes.devices import complete_description
from relm.recipes.run_folder import LOGS
from relm.training.architecture import initial_model, unset_model
from relm.training.checkpoints import Checkpoint, load_checkpoint
from relm.training.loss_scaling import LossScaler, build_loss_scaler
from relm.training.meter import Meter
from relm.training.optimizers import build_optimizer, convert_update_counts, optimizer_tensors, restore_optimizer, weight_type
from relm.training.phase_run import PhaseRun, derived_seed
from relm.training.starting import read_kept_optimizer, restore_kept_optimizer

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Learner:
    """The state that a checkpoint restores: the model, its optimizer, the loss scaler and the meter."""

    model: LanguageModel
    optimizer: torch.optim.Optimizer
    scaler: LossScaler | None
    meter: Meter
    logs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The logs as the checkpoint attests them; empty before the first step, or if an earlier version wrote it."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of optimizer and loss scaler as named tensors."""
        return {**optimizer_tensors(self.optimizer, self.model), **(self.scaler.tensors() if self.scaler else {})}

    def updated_tensors(self) -> list[Tensor]:
        """Return all tensors that a step updates in place."""
        flag = [self.scaler.found_inf] if self.scaler is not None else []
        return [*self.model.parameters(), *self.tensors().values(), *flag]

    def find_infinite_weight(self) -> str | None:
        """Return the name and value of a weight that is NaN or infinite; None: all are finite."""
        for name, weight in self.model.named_parameters():
            for bound in weight.detach().aminmax():  # one pass without a temporary; either is NaN where any weight is
                if not bool(bound.isfinite()):
                    return f"the weight {name} has {bound.item()}"
        return None

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of optimizer and loss scaler from the result of `tensors`."""
        state = dict(tensors)
        if self.scaler is not None:
            self.scaler.restore({name: state.pop(name) for name in self.scaler.tensors()})
        restore_optimizer(self.optimizer, self.model, convert_update_counts(self.optimizer, state), copy=False)


def begin(run: PhaseRun, config: Configuration, init_from: Path | None, optimizer_from: Path | None = None) -> Learner:
    """Return the learner of the newest checkpoint, or a new one, from weights and optimizer state in these folders if given."""
    settings = run.settings
    checkpoint = load_checkpoint(run.checkpoints, run.identity)
    weights_seed = derived_seed(run.recipe.seed, "weights")
    start = unset_model(config) if checkpoint else initial_model(config, weights_seed, init_from)
    learner = build_learner(run, config, start, checkpoint.state if checkpoint else None)
    model, optimizer = learner.model, learner.optimizer
    if checkpoint is not None:
        logger.info("%s: resuming after step %s of %s", checkpoint.folder, f"{checkpoint.step:,}", f"{settings.steps:,}")
        model.load_state_dict(checkpoint.model)
        learner.restore(checkpoint.optimizer)
        if run.writes:
            warn_if_made_elsewhere(checkpoint, run.made_on)
    elif optimizer_from is not None:
        restore_kept_optimizer(optimizer, model, read_kept_optimizer(optimizer_from, run.identity["fingerprint"]))
    run.device.materialise(learner.updated_tensors())
    return learner


def build_learner(
    run: PhaseRun, config: Configuration, start: LanguageModel, state: Mapping[str, Any] | None = None
) -> Learner:
    """Return a learner on the run's device, from a model on the host and a checkpoint's state, if any."""
    settings, every = run.settings, run.recipe.run
    model = run.device.place(start).to(weight_type(settings.optimizer))
    model.activation_checkpointing = every.activation_checkpointing
    model.recomputed = run.device.recomputed
    model.loss_chunk, model.keeps_logits = every.loss_chunk, every.loss_chunk is None
    optimizer = build_optimizer(model, settings.optimizer, run.device.traces, run.device.elements_per_operation)
    scaler = build_loss_scaler(settings.loss_scaling, settings.precision, next(model.parameters()).device)
    if scaler is not None:
        scaler.attach(optimizer)
    meter = Meter(run.device, run.work(config), state, run.machine)
    return Learner(model, optimizer, scaler, meter, state.get(LOGS, {}) if state else {})


def warn_if_made_elsewhere(checkpoint: Checkpoint, made_on: Mapping[str, Any]) -> None:
    """Warn if a resumed run rounds differently from its beginning, and name the facts that changed."""
    before = complete_description(checkpoint.state.get("made_on", {}))
    changed = [
        f"{key} was {before.get(key)}, is {made_on.get(key)}"
        for key in {**before, **made_on}
        if before.get(key) != made_on.get(key)
    ]
    if changed:
        logger.warning(
            "%s: %s; resuming, but the last bits will differ from an uninterrupted run's", checkpoint.folder, "; ".join(changed)
        )
