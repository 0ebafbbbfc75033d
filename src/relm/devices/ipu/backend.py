"""The interface between the worker process of an IPU run and its backend: PopTorch, or the pipeline simulator.

The worker runs in the Python of Graphcore's SDK (3.8 with torch 2.0.1), which lacks pydantic and transformers. The training
loop runs in relm's Python, and sends the worker everything as JSON and arrays (`relm.devices.ipu.channel`).
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Protocol

import numpy as np
from torch import Tensor

Arrays = Dict[str, np.ndarray]
Tensors = Dict[str, Tensor]


class BackendError(Exception):
    """An error whose message is for the user: what is wrong, what was expected, what to do."""


class WorkerSpec(NamedTuple):
    """Everything that opens a backend; sent to the worker as JSON."""

    backend: str
    """poptorch or simulator."""
    architecture: str
    """gpt2, llama, bert or roberta."""
    configuration: dict[str, Any]
    """The fields of the model's configuration, such as `relm.models.gpt2_configuration.Gpt2Config`."""
    pipeline: dict[str, Any]
    """The fields of `relm.recipes.machine.pipeline.Pipeline`, of one phase, and its `placement` as [segment, IPU] pairs."""
    optimizer: dict[str, Any]
    """The fields of `relm.recipes.optimization.Optimizer`."""
    precision: str
    """The phase's precision, in which the simulator computes; an IPU computes in the pipeline's precision."""
    seed: int
    """The recipe's seed."""
    threads: int
    """CPU threads of the simulator."""
    executable_cache: str
    """Folder for compiled executables; empty: they are not kept."""
    offline: bool = False
    """Compile for IPUs that are not attached to this machine, and run nothing."""


class UpdateCall(NamedTuple):
    """The input of one call: `device_iterations` updates of this instance's replicas.

    Sequences are ordered by update, then replica, then micro-batch.
    """

    batch: Arrays
    """Name -> (sequences, ...), the arrays of a batch, and for each term of the loss `divisor.TERM`, (sequences,) float32: the
    divisor of the term's nats in the sequence's micro-batch. An update's loss is the sum over all micro-batches of all replicas
    of all instances."""
    seeds: np.ndarray
    """(updates, replicas, micro-batches) int64, the seeds of dropout, which PopTorch ignores."""
    learning_rate: float
    loss_scale: float


class UpdateSums(NamedTuple):
    """The result of one call, over this instance's replicas."""

    losses: np.ndarray
    """(updates,) float64, each update's loss; if the device adds up its updates, (1,): their mean."""
    terms: dict[str, tuple[float, float]]
    """Term -> sum of nats and count of correct labels over the last update, or means if the device adds up its updates."""


class Backend(Protocol):
    """Computes updates of one model."""

    def load(self, weights: Tensors, state: Tensors) -> None:
        """Set the weights (float32, by the model's names) and the optimizer's state.

        The state has PARAMETER.exp_avg and PARAMETER.exp_avg_sq, float32, and the scalar `updates`.
        """

    def compile(self, call: UpdateCall) -> float:
        """Compile the program for inputs of these shapes, and return the seconds that it took; 0 if nothing is compiled."""

    def take(self, call: UpdateCall) -> UpdateSums:
        """Take the updates of one call."""

    def save(self) -> tuple[Tensors, Tensors]:
        """Return the weights and the optimizer's state, as `load` takes them."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all instances, of the same shape and type."""

    @staticmethod
    def describe() -> dict[str, Any]:
        """Return the facts that decide how sums are rounded: `name` of the hardware, versions of packages."""

    def close(self) -> None:
        """Release the device."""
