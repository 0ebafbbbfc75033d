"""The interface between the training loop and a device, narrow enough that another device is one more module."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relm.devices.host_copies import clone_tensors
from relm.devices.ipu.backend import UpdateCall, UpdateSums
from relm.models.layers import recomputed
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.phase import Phase
from relm.recipes.run import Run

Model = TypeVar("Model", bound=nn.Module)
Forward = TypeVar("Forward", bound=Callable[..., Any])

opened_hardware: dict[str, None] = {}
"""The accelerators that this process opened, such as "NVIDIA L4" or "TPU v3"; a step's record names them."""


class Device:
    """A device that trains a model, or the part of it that one of several equal processes (ranks) drives.

    These methods are for a single process whose operations are done when a call returns, with all tensors on the host.
    """

    rank: int = 0
    """The rank of this process, from 0; rank 0 writes files."""
    ranks: int = 1
    """The count of processes that take each step together."""
    part: int = 0
    """The index, from 0, of the part of each global batch that this process reads."""
    parts: int = 1
    """The count of parts: as many as ranks, or 1 if every rank reads the whole batch and the device takes its share."""
    asynchronous: bool = False
    """True if it computes while the host continues, so that a line of the log is read while the next step is computed."""
    traces: bool = False
    """True if every operation is traced and compiled: the first run of a shape is slow, and models and optimizers compute some
    operations differently."""
    elements_per_operation: int = 1 << 26
    """The count of elements that one operation of an optimizer updates. On a CPU an operation's result should be in the cache
    when the next one reads it; elsewhere this bounds the memory of intermediate results."""
    updates_per_call: int = 1
    """The updates of one call, all with one learning rate, between which the loop cannot log, save or stop; 1 except on a
    device that takes whole updates."""

    def place(self, model: Model) -> Model:
        """Return the model with its parameters on the device, ready to optimize and save, and its modules' `traced` set."""
        return model

    def materialise(self, tensors: Iterable[Tensor]) -> None:
        """Compute the tensors that every step updates in place, so that all steps see the same kind of tensors."""

    def forward(self, terms: Forward) -> Forward:
        """Return a model's forward pass as the device runs it: compiled if requested."""
        return terms

    def recomputed(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """Return `layer(*inputs)`, keeping only the inputs for the backward pass, which computes the rest again."""
        return recomputed(layer, *inputs)

    def seed(self, number: int) -> None:
        """Seed the random number generators of dropout; torch.manual_seed also searches for other devices, which is slow."""
        torch.default_generator.manual_seed(number)

    def stage(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """Return a batch's arrays, by name, in the form that `feed` takes. A separate thread calls it during computation."""
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a staged batch on the device, by name, without waiting for the copy."""
        return dict(batch)

    def make_scalar(self, value: float) -> float | Tensor:
        """Return a value that changes from step to step in a form that is not a constant of a compiled program."""
        return value

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """Return the context of a forward pass in `precision`: float32, bfloat16 or float16. Parameters stay float32."""
        return autocast("cpu", precision)

    def sum_counts(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum of counts over all ranks, on the host; only the thread that prepares batches may call it."""
        return values

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """All-reduce each gradient in place: it becomes its sum over all ranks."""

    def read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> list[float]:
        """Return the values of scalars, `partial` summed over all ranks; the host waits for the device once.

        Those in `whole` are the same on all ranks.
        """
        return self.begin_read(partial, whole)()

    def begin_read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> Callable[[], list[float]]:
        """Return a function that waits for the values that `read` returns; steps may be taken before it is called."""
        raise NotImplementedError

    def clock(self) -> Callable[[], float]:
        """Return a function that waits for the operations requested so far, and returns when they ended, in seconds.

        Only differences of these times count. The functions are called in the order in which they were returned.
        """
        now = time.monotonic()
        return lambda: now

    def copy_to_host(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return contiguous copies in main memory, None if they do not fit; the host waits for the device once.

        Steps do not change the copies, but the next call may: finish with them first.
        """
        return clone_tensors(tensors)

    def launch(self) -> None:
        """Start all operations requested so far, without waiting; a device that traces compiles them into one program."""

    def synchronise(self) -> None:
        """Wait until the device has finished all operations."""

    def peak_memory(self) -> int | None:
        """Return the peak memory of this process so far, in bytes: the accelerator's memory, or main memory on a CPU.

        None if the accelerator does not report it: never 0, and never main memory instead.
        """
        return None

    def programs(self) -> int:
        """Return the count of programs compiled so far; constant once every shape has been seen."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """Return the device's counters in this process, by name; empty if it has none."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide how sums are rounded; two runs give the same bytes only if these agree.

        `device` is the name that recipes use, `name` that of the hardware.
        """
        raise NotImplementedError

    def translate_errors(self) -> AbstractContextManager[None]:
        """Return the context of all work on the device: known errors are raised as a `RelmError` that says what to do."""
        return nullcontext()

    def close(self) -> None:
        """Destroy the process group."""


def autocast(device: str, precision: str) -> AbstractContextManager[None]:
    """Return the context that computes matrix products on one of torch's types of device in `precision`."""
    half = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device, dtype=half, enabled=precision != "float32")


class UpdatingDevice(Device):
    """A device that takes whole updates: forward and backward passes, the sum of gradients, and the optimizer's step.

    The loop's model and optimizer hold the tensors that were fetched last.
    """

    def open_updates(self, config: Any, phase: str, settings: Phase, seed: int, offline: bool = False) -> None:
        """Build the model of a phase on the device, which need not be attached if `offline`: then it only compiles."""
        raise NotImplementedError

    def load_updates(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Set the weights, by the model's names, and the optimizer's state, as a checkpoint names it."""
        raise NotImplementedError

    def compile_updates(self, call: UpdateCall) -> float:
        """Compile the program for calls of this shape, and return the seconds that it took."""
        raise NotImplementedError

    def take_updates(self, call: UpdateCall) -> UpdateSums:
        """Take the updates of a call."""
        raise NotImplementedError

    def fetch_updates(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the weights and the optimizer's state, as `load_updates` takes them."""
        raise NotImplementedError


def open_device(run: Run, cache: Path | None = None, one_tpu: bool = False) -> Device:
    """Return the device of a recipe's section `run`, ready to train.

    Args:
        cache: folder in which a device may keep compiled programs; None: they are not kept.
        one_tpu: use only the first of a TPU's devices.
    """
    device: Device = load(DEVICES[run.device].open)(run, cache, one_tpu)
    if run.device != HOST:
        opened_hardware[str(device.describe().get("name", run.device))] = None
    return device
