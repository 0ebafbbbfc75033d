"""IPUs, and the simulator of their pipeline: devices that take whole updates in a worker process.

The worker has the current weights and optimizer state. This process has those of the newest checkpoint or validation, and
computes validation on the CPU.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relm.devices.contract import UpdatingDevice
from relm.devices.ipu.backend import UpdateCall, UpdateSums
from relm.devices.ipu.instances import find_instance
from relm.devices.ipu.worker_process import WorkerProcess
from relm.errors import RelmError
from relm.limits import usable_cores
from relm.recipes.devices import PRECISION
from relm.recipes.phase import Phase
from relm.recipes.run import Run

SIMULATOR = "ipu_simulator"


class IpuDevice(UpdatingDevice):
    """IPUs or their simulator.

    A call is complete when it returns. The model here is a container, and validation is computed on the CPU.
    """

    traces = True

    def __init__(self, run: Run, cache: Path | None) -> None:
        """Start the worker."""
        if run.pipeline is None:
            raise RelmError(
                f"run.device: {run.device} needs a pipeline, which says how the model is split. Choose a machine for which the "
                "recipe has a pipeline under `on`"
            )
        self._pipeline, self._simulates = run.pipeline, run.device == SIMULATOR
        # The simulator computes all replicas in one process.
        instance = (0, 1) if self._simulates else find_instance(run.pipeline, os.environ)
        self.rank, self.ranks = self.part, self.parts = instance
        self.updates_per_call = run.pipeline.device_iterations
        self.threads = run.threads or usable_cores()
        torch.set_num_threads(self.threads)  # of validation
        torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms imports torch's compiler, for seconds
        self._name, self._cache = run.device, cache
        self._compile_seconds = 0.0
        self._lock = threading.Lock()  # the thread that prepares inputs requests sums over the same pipe
        self.worker = WorkerProcess("simulator" if self._simulates else "poptorch")

    def _request(
        self, kind: str, fields: Mapping[str, Any] | None = None, arrays: Mapping[str, np.ndarray] | None = None
    ) -> Any:
        """Return the worker's answer to a request; one thread at a time."""
        with self._lock:
            return self.worker.request(kind, fields, arrays)

    def open_updates(self, config: Any, phase: str, settings: Phase, seed: int, offline: bool = False) -> None:
        """Have the worker build the model of a phase, on the IPUs of its pipeline."""
        pipeline = self._pipeline.of_phase(phase)
        if self._simulates:
            pipeline = pipeline.model_copy(update={"instances": 1})
        spec = {
            "backend": "simulator" if self._simulates else "poptorch",
            "architecture": config.architecture,
            "configuration": asdict(config),
            "pipeline": {**pipeline.model_dump(mode="json"), "placement": pipeline.placement},
            "optimizer": settings.optimizer.model_dump(mode="json"),
            "precision": settings.precision,
            "seed": seed,
            "threads": self.threads,
            "executable_cache": str(self._cache.absolute()) if self._cache is not None else "",
            "offline": offline,
        }
        self._request("open", spec)

    def load_updates(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Send the weights and the optimizer's state to the worker."""
        tensors = {f"weight.{name}": tensor for name, tensor in weights.items()}
        tensors |= {f"state.{name}": tensor for name, tensor in state.items()}
        self._request("load", arrays={name: tensor.detach().numpy() for name, tensor in tensors.items()})

    def compile_updates(self, call: UpdateCall) -> float:
        """Compile the program of a call, and return the seconds that it took."""
        self._compile_seconds = float(self._request("compile", *_encode(call)).fields["seconds"])
        return self._compile_seconds

    def take_updates(self, call: UpdateCall) -> UpdateSums:
        """Take the updates of one call, and return the sums over this instance's replicas."""
        answer = self._request("take", *_encode(call))
        terms = {name: (nats, correct) for name, (nats, correct) in answer.fields["terms"].items()}
        return UpdateSums(answer.arrays["losses"], terms)

    def fetch_updates(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the worker's weights and optimizer state."""
        arrays = self._request("save").arrays
        parts: dict[str, dict[str, Tensor]] = {"weight": {}, "state": {}}
        for name, array in arrays.items():
            kind, _, own = name.partition(".")
            parts[kind][own] = torch.from_numpy(array)
        return parts["weight"], parts["state"]

    def sum_counts(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum over all instances."""
        return values if self.ranks == 1 else self._request("sum", arrays={"values": values}).arrays["values"]

    def begin_read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> Callable[[], list[float]]:
        """Read the values at once, because they are on this host; `partial` is summed over the instances."""
        values = np.array([float(value) for value in partial], dtype=np.float64)
        if self.ranks > 1:
            values = self._request("sum", arrays={"values": values}).arrays["values"]
        read = [*values.tolist(), *(float(value) for value in whole)]
        return lambda: read

    def programs(self) -> int:
        """Return 1: the program of a call never changes."""
        return 1

    def figures(self) -> dict[str, float]:
        """Return the seconds of compiling; empty if nothing was compiled."""
        return {"compile_seconds": round(self._compile_seconds, 3)} if self._compile_seconds else {}

    def describe(self) -> dict[str, Any]:
        """Return the device, the worker's versions, and the counts that decide the order of sums."""
        counts = {"replicas": self._pipeline.replicas, "updates_per_call": self.updates_per_call}
        own = {PRECISION: "highest", "threads": self.threads} if self._simulates else {}
        return {"device": self._name, "name": self._name, **self.worker.facts, **own, **counts}

    def close(self) -> None:
        """Release the IPUs, and end the worker."""
        self.worker.close()


def open_ipu_device(run: Run, cache: Path | None, one_tpu: bool) -> IpuDevice:
    """Return the IPUs or their simulator; `one_tpu` has no effect."""
    return IpuDevice(run, cache)


def _encode(call: UpdateCall) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the fields and arrays of a call's request."""
    arrays = {"seeds": call.seeds, **{f"batch.{name}": array for name, array in call.batch.items()}}
    return {"learning_rate": call.learning_rate, "loss_scale": call.loss_scale}, arrays
