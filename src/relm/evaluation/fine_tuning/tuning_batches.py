"""The batches of a forward pass in fine-tuning and in scoring the tuned model, which an accelerator's devices share."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from relm.devices.contract import Device, open_device
from relm.devices.ranks import ranks
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.examples.contract import Batch
from relm.recipes.devices import DEVICES
from relm.recipes.evaluation.fine_tuning import FineTuning
from relm.recipes.run import Run


def count_devices(execution: Execution, programs: Path) -> int:
    """Return the number of devices that share each forward pass of training: a TPU's cores or chips, otherwise 1.

    A TPU keeps its programs in the folder `programs`, and once it is open nowhere else.
    """
    if not DEVICES[execution.device].fine_tuning_tokens:
        return 1
    if ranks() > 1:
        raise RelmError(
            f"WORLD_SIZE is {ranks()}, but one process on one host fine-tunes; unset RANK and WORLD_SIZE, and use a slice of "
            "one host or give another --device"
        )
    with closing(open_device(Run(device=execution.device, threads=execution.threads), programs)) as device:
        return _count(device)


def _count(device: Device) -> int:
    """Return the number of devices that share each forward pass."""
    return int(device.describe().get("devices", 1))


def tokens_at_once(execution: Execution, devices: int) -> int:
    """Return the tokens of a forward pass over all devices."""
    return DEVICES[execution.device].fine_tuning_tokens * devices or execution.batch_tokens


def fitting_micro_batch(options: FineTuning, tokens: int, devices: int = 1) -> int:
    """Return the largest divisor of the batch size, a multiple of the devices, whose sequences have at most `tokens` tokens.

    If none fits, it is one sequence for each device.

    >>> from relm.recipes.evaluation.fine_tuning import Squad
    >>> fitting_micro_batch(Squad(batch_size=32, sequence_length=384), 16_384)
    32
    >>> fitting_micro_batch(Squad(batch_size=30, sequence_length=384), 2_000)
    5
    >>> fitting_micro_batch(Squad(batch_size=1040, sequence_length=384), 8 * 4096, devices=8)
    80
    """
    fitting = range(devices, min(tokens // options.sequence_length, options.batch_size) + 1, devices)
    return max((size for size in fitting if options.batch_size % size == 0), default=devices)


def require_even_batches(options: FineTuning, micro_batch_size: int, devices: int, device: str) -> None:
    """Raise unless the devices can share each forward pass evenly."""
    for option, size in (("--batch-size", options.batch_size), ("--micro-batch-size", micro_batch_size)):
        if size % devices:
            raise RelmError(
                f"{option} is {size}, but the {device} has {devices} devices, which share each forward pass evenly; give a "
                f"multiple of {devices}, or another --device"
            )


@dataclass(frozen=True)
class ScoredBatches:
    """The batches of a forward pass over many sequences."""

    size: int
    """Sequences of a batch."""
    fills: bool
    """Fill the last batch with copies of the last sequence, so that all have the shape that was compiled, and devices equal
    parts."""

    @classmethod
    def on(cls, device: Device, execution: Execution, count: int, length: int) -> Self:
        """Return the batches of `count` sequences of `length` tokens for a device."""
        devices = _count(device)
        of_each = min(tokens_at_once(execution, devices) // (length * devices), -(-count // devices))
        return cls(devices * max(1, of_each), device.traces)

    def split(self, inputs: Batch) -> Iterator[Batch]:
        """Yield the batches of arrays, all (sequences, ...), in order."""
        for first in range(0, len(next(iter(inputs.values()))), self.size):
            batch = {name: array[first : first + self.size] for name, array in inputs.items()}
            yield {name: self._fill(array) for name, array in batch.items()} if self.fills else batch

    def _fill(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        missing = self.size - len(array)
        return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
