"""What the loop asks of a device, narrow enough that another one is one more module."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from relm.errors import RelmError
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES
from relm.recipes.recipe import Run

Model = TypeVar("Model", bound=nn.Module)
Forward = TypeVar("Forward", bound=Callable[..., Any])


class Device(Protocol):
    """A place where a model trains: all of it, or what one of several equal processes, its ranks, has of it."""

    rank: int
    """Of this process, from 0; rank 0 writes files."""
    ranks: int
    """How many processes take each step together."""
    part: int
    """Which part of each global batch this process reads, from 0."""
    parts: int
    """How many parts there are: as many as ranks, or 1 where every rank reads all and the device takes what is its own."""
    traces: bool
    """Whether a compiler makes programs of all that it is given: what runs for the first time is compiled first, and models
    and optimizers compute some operations in another form."""
    numbers_at_once: int
    """Numbers that one operation of an optimizer updates. On a CPU one operation's result should be in its cache when the next
    one reads it; elsewhere this bounds the memory of intermediate results."""

    def place(self, model: Model) -> Model:
        """Return the model with its parameters on the device, the ones to optimize and save, and its parts `traced` or not."""

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Have what every step changes in place where the first step finds it as all later ones will."""

    def forward(self, terms: Forward) -> Forward:
        """A model's forward pass as the device runs it: compiled where that was asked for."""

    def recomputed(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """`layer(*inputs)`, of which the inputs alone are kept for the backward pass: that computes the rest anew."""

    def seed(self, number: int) -> None:
        """Seed the generators that dropout draws from."""

    def staged(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """The arrays of a batch on the host, as `feed` wants them. A thread of its own calls it while the device computes."""

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A staged batch on the device, by name, without waiting for it."""

    def number(self, value: float) -> float | Tensor:
        """What a step computes with and the next one has another of; a program must not have it as a constant."""

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """The context of a forward pass in `precision`, float32, bfloat16 or float16; parameters stay float32."""

    def exchanged(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum of an array over all ranks, on the host. Only the thread that prepares batches may call it."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make each gradient its sum over all ranks, in place."""

    def read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> list[float]:
        """The values of scalars, for which the host waits once.

        Args:
            partial: of which the sum over all ranks is wanted.
            whole: the same on all ranks; wanted as they are.
        """

    def launch(self) -> None:
        """Begin with all that was asked so far; a device that traces makes one program of it. Nothing waits."""

    def synchronise(self) -> None:
        """Wait until the device has done all it was given."""

    def peak_memory(self) -> int | None:
        """Return the most bytes that this process held so far: of the accelerator's memory, on a CPU of main memory.

        None where the accelerator does not report it: never 0, and never the main memory in its place.
        """

    def programs(self) -> int:
        """How many programs were compiled so far; constant once every shape has been seen."""

    def figures(self) -> dict[str, float]:
        """What it counted of its own work in this process, by name; empty where it counts nothing."""

    def describe(self) -> dict[str, Any]:
        """What it is; two runs are the same bytes only where these agree."""

    def errors_in_words(self) -> AbstractContextManager[None]:
        """The context of all work with it: what it raises comes out as a `RelmError` that says what to do, if that is known."""

    def close(self) -> None:
        """Take leave of the other ranks."""


def open_device(run: Run, cache: Path | None = None, one_tpu: bool = False) -> Device:
    """Make a device ready, as a recipe's section `run` describes it.

    Args:
        cache: where a device that takes long to compile may keep its programs; None: they are not kept.
        one_tpu: of a TPU's devices, use the first alone.

    Raises:
        RelmError: it is not there, or another number of processes was started; says what to do.
    """
    function = DEVICES[run.device].open
    if function is None:
        *most, last = [declaration.name for declaration in DEVICES if declaration.open is not None]
        raise RelmError(
            f"run.device: {run.device} is not available in this version; set run.device to {', '.join(most)} or {last}"
        )
    device: Device = load(function)(run, cache, one_tpu)
    return device
