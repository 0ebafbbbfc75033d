"""The pipeline simulator: updates of a model divided over IPUs, computed by the CPU in plain torch.

It has the partition, the schedule and the optimizer of a run on IPUs, and computes in the recipe's precision: float32, or
bfloat16 with float32 weights. If the pipeline's `precision` is float16 with `stochastic_rounding`, each update rounds weights
to float16 at random as an IPU does. Activations, gradients and moments in half precision are not simulated.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator

import numpy as np
import torch
from torch import Tensor

from relm.devices.ipu.backend import Arrays, BackendError, Tensors, UpdateCall, UpdateSums, WorkerSpec
from relm.devices.ipu.partition import build_model
from relm.devices.ipu.placed_model import DIVISOR
from relm.devices.ipu.simulated_pipeline import Outcome, SeededMicroBatch, SimulatedPipeline, derive_seed
from relm.devices.ipu.stochastic_rounding import round_stochastically
from relm.devices.ipu.update_rules import UpdateRule
from relm.models.contract import LanguageModel
from relm.models.layers import serialised_linear


class SimulatorBackend:
    """Computes updates through a simulated pipeline; implements `relm.devices.ipu.backend.Backend`.

    The replicas have the same weights and share one copy of the pipeline.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        """Build the pipeline with unset weights: call `load`."""
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._spec = spec
        try:
            self._pipeline = SimulatedPipeline(
                partial(_build, spec),
                [(name, ipu) for name, ipu in spec.pipeline["placement"]],
                recompute=spec.pipeline["recompute_layers"],
                autocast=lambda: torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bfloat16"),
            )
        except ValueError as error:
            raise BackendError(str(error)) from error
        self._rule = UpdateRule(spec.optimizer, self._pipeline.parameters)

    def load(self, weights: Tensors, state: Tensors) -> None:
        """See `Backend`."""
        parameters = self._pipeline.parameters
        if faults := sorted(set(weights) ^ set(parameters)):
            raise BackendError(f"the weights belong to another model: {', '.join(faults[:5])}; use a checkpoint of this model")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        self._rule.restore(state)

    def compile(self, call: UpdateCall) -> float:
        """Return 0: nothing is compiled."""
        return 0.0

    def take(self, call: UpdateCall) -> UpdateSums:
        """Take the updates of one call, one after the other."""
        losses = []
        outcomes: list[Outcome] = []
        for update in _updates(call, self._spec.pipeline["micro_batch_size"]):
            outcomes = self._update(update, call)
            losses.append(sum(outcome.loss.double().item() for outcome in outcomes))
        return UpdateSums(np.array(losses, dtype=np.float64), _sums(outcomes))

    def _update(self, replicas: list[list[SeededMicroBatch]], call: UpdateCall) -> list[Outcome]:
        """Take one update, and return the results of all micro-batches, replica by replica."""
        for parameter in self._pipeline.parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        outcomes = [
            outcome for micro_batches in replicas for outcome in self._pipeline.accumulate(micro_batches, call.loss_scale)
        ]
        gradients = {
            name: parameter.grad / call.loss_scale
            for name, parameter in self._pipeline.parameters.items()
            if parameter.grad is not None
        }
        self._rule.take(gradients, call.learning_rate)
        if self._spec.pipeline["stochastic_rounding"] and self._spec.pipeline["precision"] == "float16":
            self._round_weights()
        return outcomes

    @torch.no_grad()
    def _round_weights(self) -> None:
        """Round the weights to float16 at random, seeded by the recipe's seed and the count of updates."""
        generator = torch.Generator().manual_seed(derive_seed(self._spec.seed, f"rounding of update {self._rule.updates}"))
        for parameter in self._pipeline.parameters.values():
            parameter.copy_(round_stochastically(parameter, torch.float16, generator))

    def save(self) -> tuple[Tensors, Tensors]:
        """Return copies of the weights and the optimizer's state."""
        weights = {name: parameter.detach().clone() for name, parameter in self._pipeline.parameters.items()}
        return weights, self._rule.tensors()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the array unchanged, because it is the only instance."""
        return values

    @staticmethod
    def describe() -> dict[str, Any]:
        """Return the facts that decide how sums are rounded: the CPU's instructions and torch's version."""
        # torch 2.0 has no function for the instructions that it uses, only a printed list.
        lines = [line for line in torch.__config__.show().splitlines() if "CPU capability" in line]
        return {"name": lines[0].rpartition(" ")[2] if lines else "cpu", "torch": torch.__version__}

    def close(self) -> None:
        """Do nothing: no device is held."""


def _build(spec: WorkerSpec) -> LanguageModel:
    """Return the whole model with the pipeline's forms of projection and loss."""
    model = build_model(spec.architecture, spec.configuration)
    model.loss_chunk = spec.pipeline["loss_chunk"]
    slices = spec.pipeline["vocabulary_serialisation"]
    if slices > 1:
        model.project_vocabulary = partial(serialised_linear, slices=slices)
    return model


def _updates(call: UpdateCall, size: int) -> Iterator[list[list[SeededMicroBatch]]]:
    """Yield the micro-batches of each update, replica by replica."""
    first = 0
    for of_update in call.seeds:
        update = []
        for of_replica in of_update:
            starts = range(first, first + size * len(of_replica), size)
            update.append([_micro_batch(call.batch, start, size, int(seed)) for start, seed in zip(starts, of_replica)])
            first += size * len(of_replica)
        yield update


def _micro_batch(batch: Arrays, first: int, size: int, seed: int) -> SeededMicroBatch:
    """Return `size` sequences of a call."""
    some = {name: array[first : first + size] for name, array in batch.items()}
    divisors = {name[len(DIVISOR) :]: float(array[0]) for name, array in some.items() if name.startswith(DIVISOR)}
    tensors = {name: _tensor(array) for name, array in some.items() if not name.startswith(DIVISOR)}
    return SeededMicroBatch(tensors, divisors, seed)


def _tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor, integers as int64."""
    wide = array.astype(np.int64) if array.dtype.kind in "iu" else np.array(array)
    return torch.from_numpy(wide)


def _sums(outcomes: list[Outcome]) -> dict[str, tuple[float, float]]:
    """Return each term's sum of nats and count of correct labels over micro-batches."""
    return {
        name: (
            sum(outcome.terms[name].nats.double().item() for outcome in outcomes),
            float(sum(outcome.terms[name].correct.item() for outcome in outcomes)),
        )
        for name in (outcomes[0].terms if outcomes else ())
    }
