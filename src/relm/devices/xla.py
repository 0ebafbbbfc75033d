"""TPUs through PyTorch/XLA, always with SPMD: one process drives all devices, and a step is one program over all of them.

The model's code sees the global batch. Its arrays are sharded over the devices along their first axis, parameters and
optimizer state are replicated, and the compiler inserts the all-reduces: for every objective the loss, and so each gradient,
is that of the global batch. PyTorch/XLA traces operations; `launch` ends a program.

With PJRT_DEVICE=CPU and CPU_NUM_DEVICES=8 in the environment the same code runs on a CPU as if that were eight devices.

On a TPU of several hosts each host has a process, which traces the same program and reads the same global batch; PyTorch/XLA
sends each device its shard, by the mesh. Hosts compare counts with each other over the network, outside the TPU.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relm.devices.contract import Device, Model
from relm.devices.host_copies import fit_into_memory
from relm.devices.processes import Processes
from relm.devices.tpu_chips import chip_count, chips_here
from relm.devices.tpu_options import set_options
from relm.devices.xla_errors import explain_error
from relm.devices.xla_opening import (
    import_torch_xla,
    keep_programs,
    open_devices,
    read_host_rank,
    requested_kind,
    require_supported,
    require_tpu,
)
from relm.devices.xla_precision import set_xla_precision, xla_precision
from relm.devices.xla_recomputing import recomputed
from relm.errors import RelmError
from relm.limits import peak_resident_memory
from relm.models.layers import set_traced
from relm.recipes.devices import PRECISION
from relm.recipes.run import Run

NANOSECONDS = 10**9


class XlaDevice(Device):
    """All devices of a TPU, also those of other hosts; the compiler sums gradients."""

    asynchronous = True
    traces = True

    def __init__(self, run: Run, cache: Path | None = None, one: bool = False) -> None:
        """Open the TPU, or the CPU if PJRT_DEVICE says so.

        Args:
            cache: folder for compiled programs; None: they are not kept.
            one: use only the first device, without SPMD, as where `run.topology` is one device of a host.
        """
        require_supported(run)
        one = one or run.one_of_host
        self._kind = requested_kind(os.environ)
        chips = chips_here() if self._kind == "TPU" else []
        self._generation = chips[0] if chips else None
        self.rank, self.ranks = read_host_rank(os.environ, self._kind, one)
        if one:
            os.environ.pop("XLA_USE_SPMD", None)  # it would turn SPMD on
        os.environ["PJRT_DEVICE"] = self._kind
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # otherwise XLA logs a warning for each program
        import_torch_xla()
        import torch_xla
        import torch_xla.distributed.spmd as xs

        if self._kind == "TPU":
            require_tpu(len(chips), self.ranks)
            set_options(os.environ)
        if run.threads:
            torch.set_num_threads(run.threads)
        self._precision_before = xla_precision()
        set_xla_precision(run.float32_matmul_precision)
        if cache is not None and self._generation is not None:
            keep_programs(cache, self._generation, self.rank, self.ranks)
        self.devices = open_devices(self._kind, self.ranks, one)
        self._hosts = Processes(torch.device("cpu")) if self.ranks > 1 else None
        self._device = torch_xla.device()
        self._mesh = None if one else xs.Mesh(np.arange(self.devices), (self.devices,), ("data",))
        self._shardings: dict[int, Any] = {}
        self._run, self._failed = run, False

    def place(self, model: Model) -> Model:
        """Return the model with parameters on every device and `traced` set; tied parameters stay tied."""
        shared = shared_parameters(model)  # moving gives each owner a copy that would be trained separately
        moved = model.to(self._device)
        set_traced(moved, self.traces)
        for (owner, name), *others in shared:
            for module, other in others:
                setattr(module, other, getattr(owner, name))
        return moved

    def materialise(self, tensors: Iterable[Tensor]) -> None:
        """Compute tensors that were only traced, and annotate them as replicated.

        Without the annotation the second step, which reads annotated results of the first, would be another program.
        """
        import torch_xla.distributed.spmd as xs

        # Axes are divided over None: every device has the whole tensor.
        for tensor in tensors if self._mesh is not None else ():
            xs.mark_sharding(tensor, self._mesh, (None,) * tensor.dim())
        self.launch()

    def recomputed(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """Return `layer(*inputs)`, and compute it again in the backward pass, behind a barrier.

        Without the barrier the compiler would keep the results.
        """
        return recomputed(layer, *inputs)

    def seed(self, number: int) -> None:
        """Seed the generator of the devices; programs do not contain the seed."""
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(number, str(self._device))

    def stage(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """Start copying the batch to this host's devices, a shard to each, and return it."""
        import torch_xla.core.xla_model as xm

        staged: dict[str, Tensor] = {}
        for name, array in batch.items():
            if len(array) % self.devices:
                raise RelmError(
                    f"{len(array)} sequences cannot be divided evenly among {self.devices} devices. Set "
                    f"run.micro_batch_size (or the global batch, or its loss_shares) to a multiple of {self.devices}"
                )
            (staged[name],) = xm.send_cpu_data_to_device(
                [torch.from_numpy(np.ascontiguousarray(array))], self._device, self._sharding(array.ndim)
            )
        return staged

    def make_scalar(self, value: float) -> float | Tensor:
        """Return the value as a tensor on every device.

        Python numbers become constants of the program if they are 0 or 1, and one shared argument if two are equal, so a value
        could cause another compilation during a run.
        """
        import torch_xla.core.xla_model as xm

        sent: list[Tensor] = xm.send_cpu_data_to_device([torch.tensor(value, dtype=torch.float32)], self._device)
        return sent[0]

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """Return the context that computes matrix products in `precision`, which cannot be float16."""
        if precision == "float16":
            raise RelmError("precision: TPUs do not support float16; set the phase's precision to bfloat16")
        return nullcontext() if precision == "float32" else torch.autocast("xla", dtype=torch.bfloat16)

    def sum_counts(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum over all hosts."""
        return values if self._hosts is None else self._hosts.sum_counts(values)

    def begin_read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> Callable[[], list[float]]:
        """Return a function that fetches the values without stacking, which would compile a program for each count of scalars.

        Later steps do not change these tensors.
        """
        import torch_xla

        scalars = [*partial, *whole]
        return lambda: [float(value.item()) for value in torch_xla._XLAC._xla_get_cpu_tensors(scalars)]

    def clock(self) -> Callable[[], float]:
        """Return the host's clock, which is read after the figures: XLA does not report times of programs."""
        return time.monotonic

    def copy_to_host(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return copies, fetched in one transfer; tensors in main memory are cloned."""
        import torch_xla

        if not fit_into_memory(tensors, times=2):  # XLA holds a second copy until it has fetched all
            return None
        there = [tensor.device.type == "xla" for tensor in tensors]
        fetched = iter(
            torch_xla._XLAC._xla_get_cpu_tensors([one.detach() for one, far in zip(tensors, there, strict=True) if far])
        )
        copies = (next(fetched) if far else one.detach().clone() for one, far in zip(tensors, there, strict=True))
        return [copy.contiguous() for copy in copies]

    def launch(self) -> None:
        """Start everything traced so far as one program on the devices, without waiting."""
        import torch_xla

        torch_xla.sync()

    def synchronise(self) -> None:
        """Wait for the devices."""
        import torch_xla.core.xla_model as xm

        self.launch()
        xm.wait_device_ops()  # `sync(wait=True)` returns once the program is launched (torch_xla 2.9)

    def peak_memory(self) -> int | None:
        """Return the peak resident size of this process; None on a TPU, whose memory PyTorch/XLA does not report under SPMD."""
        return None if self._kind == "TPU" else peak_resident_memory()

    def programs(self) -> int:
        """Return the count of graphs that XLA compiled in this process."""
        return int(read_metric("CompileTime")[0])

    def figures(self) -> dict[str, float]:
        """Return compilations, executions, and transfers between host and devices: their counts, and seconds or bytes."""
        programs, executions = (
            read_metric("CompileTime"),
            read_metric("ExecuteReplicatedTime" if self._mesh is not None else "ExecuteTime"),
        )
        there, back = read_metric("TransferToDeviceTime"), read_metric("TransferFromDeviceTime")
        return {
            "compiles": programs[0],
            "compile_seconds": round(programs[1] / NANOSECONDS, 3),
            "executions": executions[0],
            "execute_seconds": round(executions[1] / NANOSECONDS, 3),
            "transfers_to_devices": there[0],
            "bytes_to_devices": int(read_metric("OutboundData")[1]),
            "transfers_from_devices": back[0],
            "bytes_from_devices": int(read_metric("InboundData")[1]),
        }

    def describe(self) -> dict[str, Any]:
        """Return the kind and count of devices, and the versions of the compiling packages."""
        import torch_xla

        generation = self._generation
        return {
            "device": "tpu",
            "name": "XLA:CPU" if generation is None else generation.name,
            **({} if generation is None else {"chips": chip_count(self.devices, generation)}),
            "devices": self.devices,
            PRECISION: xla_precision(),
            **({"hosts": self.ranks} if self.ranks > 1 else {}),
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
        }

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Explain errors of full memory and lost hosts."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # the compiler raises ValueError (torch_xla 2.9)
            self._failed = True
            if explanation := explain_error(str(error), self._run):
                raise RelmError(explanation) from error
            raise

    def close(self) -> None:
        """Wait for the devices, restore the precision of float32 products, and destroy the process group of the hosts."""
        if not self._failed:  # otherwise the same error would be raised again
            with self.translate_errors():
                self.synchronise()
        self.restore_precision()
        if self._hosts is not None:
            self._hosts.close()

    def restore_precision(self) -> None:
        """Restore the precision of float32 products from before this device was opened."""
        set_xla_precision(self._precision_before)

    def _sharding(self, dimensions: int) -> Any:
        """Return the sharding of the first axis over all devices; None without SPMD."""
        import torch_xla.distributed.spmd as xs

        if self._mesh is None:
            return None
        if dimensions not in self._shardings:
            self._shardings[dimensions] = xs.ShardingSpec(self._mesh, ("data", *[None] * (dimensions - 1)))
        return self._shardings[dimensions]


def open_xla_device(run: Run, cache: Path | None, one_tpu: bool) -> XlaDevice:
    """Return the devices of a TPU, ready, or one of them."""
    return XlaDevice(run, cache, one_tpu)


def read_metric(metric: str) -> tuple[int, float]:
    """Return the count of a PyTorch/XLA metric's samples in this process, and their sum, in nanoseconds or bytes."""
    import torch_xla.debug.metrics as metrics

    found = metrics.metric_data(metric)
    return (int(found[0]), float(found[1])) if found else (0, 0.0)  # None before the first sample


def metrics_report() -> str:
    """Return PyTorch/XLA's own report of its metrics and counters in this process."""
    import torch_xla.debug.metrics as metrics

    return str(metrics.metrics_report())


def shared_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return the owners of each tied parameter, as module and name."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(id(parameter), []).append((module, name))
    return [same for same in owners.values() if len(same) > 1]
