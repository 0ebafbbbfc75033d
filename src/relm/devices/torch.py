"""CPU and CUDA, which torch itself drives."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from relm.devices.contract import Model
from relm.errors import RelmError
from relm.limits import usable_cores

# cuBLAS promises the same bits twice only with a workspace of its own for each stream; read when CUDA starts.
_CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class TorchDevice:
    """Fulfils `relm.devices.contract.Device`."""

    def __init__(self, name: str, threads: int | None) -> None:
        """Set torch up for reproducible work on `name`, cpu or cuda.

        Raises:
            RelmError: there is no CUDA here.
        """
        if name == "cuda":
            os.environ.setdefault(*_CUBLAS_WORKSPACE)
            if not torch.cuda.is_available():
                build = "has no CUDA" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda}"
                raise RelmError(
                    f"run.device: cuda was asked for, but there is no usable GPU, and this torch ({torch.__version__}) "
                    f"{build}; install NVIDIA's driver and a CUDA build of torch (https://pytorch.org/get-started), "
                    "or set run.device to cpu"
                )
        self._device = torch.device(name)
        self.threads = threads or usable_cores()
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(True)
        # Filling fresh memory guards against reading it before it is written, which nothing here does, and costs a pass.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def place(self, model: Model) -> Model:
        """The same module, moved."""
        return model.to(self._device)

    def feed(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """The batch, copied without waiting for what the device is doing."""
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        if self._device.type == "cpu":
            return tensors
        return {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in tensors.items()}

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """Matrix products in bfloat16 or float16, where that is the precision."""
        half = torch.float16 if precision == "float16" else torch.bfloat16
        return torch.autocast(self._device.type, dtype=half, enabled=precision != "float32")

    def synchronise(self) -> None:
        """Wait for the GPU; the CPU never lags behind."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def describe(self) -> dict[str, Any]:
        """Device, torch's version, and what else decides how sums are rounded."""
        if self._device.type == "cuda":
            return {"device": "cuda", "name": torch.cuda.get_device_name(), "torch": torch.__version__}
        capability = torch.backends.cpu.get_cpu_capability()
        return {"device": "cpu", "name": capability, "threads": self.threads, "torch": torch.__version__}
