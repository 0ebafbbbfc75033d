"""What the loop asks of a device, narrow enough that another one is one more module."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy.typing as npt
from torch import Tensor, nn

from relm.errors import RelmError

Model = TypeVar("Model", bound=nn.Module)


class Device(Protocol):
    """A place where a model trains."""

    def place(self, model: Model) -> Model:
        """The model with its parameters on the device, the ones to optimize and save."""

    def feed(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """The arrays of a batch on the device, by name."""

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """The context of a forward pass in `precision`, float32, bfloat16 or float16; parameters stay float32."""

    def synchronise(self) -> None:
        """Wait until the device has done all it was given."""

    def describe(self) -> dict[str, Any]:
        """What it is; two runs are the same bytes only where these agree."""


def open_device(name: str, threads: int | None) -> Device:
    """Make a device ready.

    Args:
        name: cpu, cuda, tpu or ipu.
        threads: of the CPU; None: all cores this process may use.

    Raises:
        RelmError: it is not there; says what to install.
    """
    if name in ("cpu", "cuda"):
        from relm.devices.torch import TorchDevice

        return TorchDevice(name, threads)
    raise RelmError(f"run.device: {name} is not available in this version; set run.device to cpu or cuda")
