"""The two ways in which a device takes a round of updates: torch's operations one by one, or whole updates in one call.

An update's learning rate, batch and dropout depend only on its step.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from relm.devices.contract import UpdatingDevice
from relm.devices.ipu.backend import UpdateCall
from relm.errors import RelmError
from relm.models.losses import Term
from relm.recipes.machine.pipeline import Pipeline
from relm.training.input import Round, StepInput
from relm.training.kill_points import kill_point
from relm.training.learner import Learner
from relm.training.loss_scaling import finish_gradients, initial_scale
from relm.training.optimizers import restore_optimizer, set_learning_rate
from relm.training.phase_run import PhaseRun
from relm.training.schedules import learning_rate_of
from relm.training.step import Accumulated, accumulate_terms

Forward = Callable[[Mapping[str, Tensor]], Mapping[str, Term]]


class TorchUpdates:
    """Updates that this process takes by torch's operations, one a round."""

    def __init__(self, run: PhaseRun, learner: Learner) -> None:
        self._run, self._learner = run, learner
        self.forward: Forward = run.device.forward(learner.model.terms)
        """The model's forward pass in this process, compiled if requested; validation uses it too."""

    def take(self, given: Round) -> float:
        """Take the update without waiting for the device, count it in the meter, and return its learning rate."""
        return take_step(self._run, self._learner, self.forward, given.steps[0])

    def fetch(self) -> None:
        """Do nothing: the model of this process is the one that is trained."""


def take_step(run: PhaseRun, learner: Learner, forward: Forward, given: StepInput) -> float:
    """Take one optimizer step without waiting for the device, and return its learning rate."""
    settings, device, model = run.settings, run.device, learner.model
    learning_rate = learning_rate_of(settings, given.step)
    # Everything below depends on the weights and the number of the step, never on earlier interruptions.
    set_learning_rate(learner.optimizer, device.make_scalar(learning_rate))
    if learner.scaler is not None:
        learner.scaler.begin_step(given.step, device.make_scalar)
    accumulated = accumulate_terms(
        forward,
        run.feed(given.step, given.micro_batches),
        [{name: device.make_scalar(value) for name, value in divided.items()} for divided in given.denominators],
        lambda: device.autocast(settings.precision),
        learner.scaler.scale if learner.scaler is not None else None,
    )
    device.sum_gradients(model.parameters())
    norm = finish_gradients(model.parameters(), learner.scaler, settings.optimizer.gradient_clipping)
    kill_point("gradient")
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    device.launch()
    learner.meter.count(accumulated, norm)
    return learning_rate


class DeviceUpdates:
    """Updates that a device takes whole, `updates_per_call` a round."""

    def __init__(self, run: PhaseRun, learner: Learner, device: UpdatingDevice, offline: bool = False) -> None:
        """Build the model on the device, which need not be attached if `offline`; `load` or `compile` follows."""
        self._run, self._learner, self._device = run, learner, device
        self.forward: Forward = learner.model.terms
        pipeline = run.recipe.run.pipeline
        assert pipeline is not None, "the device requires it"
        self._pipeline: Pipeline = pipeline.of_phase(run.phase)
        device.open_updates(learner.model.config, run.phase, run.settings, run.recipe.seed, offline)

    def load(self) -> None:
        """Send the weights and the optimizer's state to the device."""
        self._device.load_updates(self._learner.model.state_dict(), self._learner.tensors())

    def compile(self, given: Round) -> float:
        """Compile the program of every round without taking an update, and return the seconds that it took."""
        return self._device.compile_updates(self._call(given))

    def take(self, given: Round) -> float:
        """Take the updates, all with the learning rate of the first."""
        call = self._call(given)
        sums = self._device.take_updates(call)
        kill_point("updates")
        # Where the device adds up its updates, each counts as their mean.
        is_mean = len(sums.losses) < len(given.steps)
        losses = sums.losses.tolist() * (len(given.steps) if is_mean else 1)
        counted = given.steps if is_mean else given.steps[-1:]
        terms = {
            name: Term(scalar(nats), scalar(sum(step.scored[name] for step in counted) / len(counted)), scalar(correct))
            for name, (nats, correct) in sums.terms.items()
        }
        for loss in losses:
            self._learner.meter.count(Accumulated(scalar(loss), terms), None)
        return call.learning_rate

    def fetch(self) -> None:
        """Copy the device's weights and optimizer state."""
        weights, state = self._device.fetch_updates()
        try:
            self._learner.model.load_state_dict(weights)
            restore_optimizer(self._learner.optimizer, self._learner.model, state)
        except (RuntimeError, ValueError) as error:
            raise RelmError(
                f"the device returned weights or state of another model: {error}; report this with the recipe"
            ) from None

    def _call(self, given: Round) -> UpdateCall:
        """Return the input of a round's call."""
        micro_batches = [batch for step in given.steps for batch in step.micro_batches]
        batch = {name: np.concatenate([one[name].numpy() for one in micro_batches]) for name in micro_batches[0]}
        denominators = [divided for step in given.steps for divided in step.denominators]
        length = self._run.reader.micro_batch_size
        for name in denominators[0]:
            each = np.array([divided[name] for divided in denominators], dtype=np.float32)
            batch[f"divisor.{name}"] = np.repeat(each, length)
        return UpdateCall(
            batch,
            seeds=self._seeds(step.step for step in given.steps),
            learning_rate=learning_rate_of(self._run.settings, given.first),
            loss_scale=initial_scale(self._pipeline.loss_scaling, given.first),
        )

    def _seeds(self, steps: Iterable[int]) -> np.ndarray:
        """Return the seeds of dropout of this process's micro-batches, (updates, replicas, micro-batches)."""
        count = self._run.settings.global_batch_size // self._device.parts // self._run.reader.micro_batch_size
        seeds = np.array([[self._run.dropout_seed(step, number) for number in range(count)] for step in steps], dtype=np.int64)
        return seeds.reshape(len(seeds), -1, self._pipeline.gradient_accumulation)


Updates = TorchUpdates | DeviceUpdates


def open_updates(run: PhaseRun, learner: Learner) -> Updates:
    """Return the updates that continue from a learner's state."""
    if isinstance(run.device, UpdatingDevice):
        updates = DeviceUpdates(run, learner, run.device)
        updates.load()
        return updates
    return TorchUpdates(run, learner)


def scalar(value: float) -> Tensor:
    """Return a value as a scalar on the host."""
    return torch.tensor(value, dtype=torch.float64)
