"""TPUs through PyTorch/XLA, by SPMD alone: one process drives all devices, and a step is one program over all of them.

The model's code sees the global batch. Its arrays are dealt out over the devices along their first axis, parameters and
optimizer state lie whole on each, and the compiler puts in the sums: the loss, and so each gradient, is of the global batch
whatever the objective. PyTorch/XLA traces what is asked of it; `launch` ends a program.

With PJRT_DEVICE=CPU and CPU_NUM_DEVICES=8 in the environment the same code runs on a CPU as if that were eight devices.

On a TPU of several hosts each host has a process, which traces the same program and reads the same global batch; PyTorch/XLA
sends of it what the host's own devices have, by the mesh. What hosts must agree on travels between them beside the TPU.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relm.devices.contract import Forward, Model
from relm.devices.processes import Processes
from relm.devices.tpu_chips import chip_count, chips_here
from relm.devices.tpu_options import set_options
from relm.devices.xla_errors import in_words
from relm.devices.xla_opening import (
    import_torch_xla,
    keep_programs,
    opened_devices,
    place_of_this_host,
    require_possible,
    require_tpu,
    wanted_kind,
)
from relm.devices.xla_recomputing import recomputed
from relm.errors import RelmError
from relm.limits import peak_resident_memory
from relm.models.layers import set_traced
from relm.recipes.recipe import Run

NANOSECONDS = 10**9


class XlaDevice:
    """Fulfils `relm.devices.contract.Device` for all devices of a TPU, of which this host may have some."""

    part, parts = 0, 1
    traces = True
    numbers_at_once = 1 << 26

    def __init__(self, run: Run, cache: Path | None = None, one: bool = False) -> None:
        """Open the TPU, or what PJRT_DEVICE names.

        Args:
            cache: folder for compiled programs; None: they are not kept.
            one: use the first device alone, of which SPMD knows nothing.

        Raises:
            RelmError: it is not there, cannot be opened, or cannot do what `run` asks for.
        """
        require_possible(run)
        self._kind = wanted_kind(os.environ)
        chips = chips_here() if self._kind == "TPU" else []
        self._generation = chips[0] if chips else None
        self.rank, self.ranks = place_of_this_host(os.environ, self._kind, one)
        if one:
            os.environ.pop("XLA_USE_SPMD", None)  # which asks for SPMD before anybody calls for it
        os.environ["PJRT_DEVICE"] = self._kind
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else each program is announced with a warning to its developers
        import_torch_xla()
        import torch_xla
        import torch_xla.distributed.spmd as xs

        if self._kind == "TPU":
            require_tpu(len(chips), self.ranks)
            set_options(os.environ)
        if run.threads:
            torch.set_num_threads(run.threads)
        if cache is not None and self._generation is not None:
            keep_programs(cache, self._generation, self.rank, self.ranks)
        self.devices = opened_devices(self._kind, self.ranks, one)
        self._hosts = Processes(torch.device("cpu")) if self.ranks > 1 else None
        self._device = torch_xla.device()
        self._mesh = None if one else xs.Mesh(np.arange(self.devices), (self.devices,), ("data",))
        self._shardings: dict[int, Any] = {}
        self._run, self._failed = run, False

    def place(self, model: Model) -> Model:
        """Return the model with parameters on every device, `traced`; those that were one before are one again."""
        shared = shared_parameters(model)
        moved = model.to(self._device)
        set_traced(moved, self.traces)
        for (owner, name), *others in shared:
            for module, other in others:
                setattr(module, other, getattr(owner, name))
        return moved

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Compute what was only traced, and say outright that each device has all of it.

        Else the second step finds what the first one left, annotated, and is another program.
        """
        import torch_xla.distributed.spmd as xs

        for tensor in tensors if self._mesh is not None else ():
            xs.mark_sharding(tensor, self._mesh, (None,) * tensor.dim())
        self.launch()

    def forward(self, terms: Forward) -> Forward:
        """As it is: whatever runs is traced."""
        return terms

    def recomputed(self, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """Computed anew behind a barrier: else the compiler, which computes nothing twice, would keep it after all."""
        return recomputed(layer, *inputs)

    def seed(self, number: int) -> None:
        """Seed the generator of the devices; no program changes with it."""
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(number, str(self._device))

    def staged(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """The batch, on its way to this host's devices already, each of which gets its part.

        Raises:
            RelmError: the devices cannot have equal parts.
        """
        import torch_xla.core.xla_model as xm

        staged: dict[str, Tensor] = {}
        for name, array in batch.items():
            if len(array) % self.devices:
                raise RelmError(
                    f"{len(array)} sequences cannot be dealt out evenly to {self.devices} devices: make run.micro_batch_size "
                    f"(without it the global batch, or one of its loss_shares) a multiple of {self.devices}"
                )
            (staged[name],) = xm.send_cpu_data_to_device(
                [torch.from_numpy(np.ascontiguousarray(array))], self._device, self._sharding(array.ndim)
            )
        return staged

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch, which is on the devices already."""
        return dict(batch)

    def number(self, value: float) -> float | Tensor:
        """A tensor of its own on every device.

        Numbers of the host are constants where they are 0 or 1, and one argument of the program where two are equal: by
        chance another program, in the middle of a run.
        """
        import torch_xla.core.xla_model as xm

        sent: list[Tensor] = xm.send_cpu_data_to_device([torch.tensor(value, dtype=torch.float32)], self._device)
        return sent[0]

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """Matrix products in bfloat16, where that is the precision.

        Raises:
            RelmError: it is float16.
        """
        if precision == "float16":
            raise RelmError("precision: float16 is not for TPUs; set the phase's precision to bfloat16")
        return nullcontext() if precision == "float32" else torch.autocast("xla", dtype=torch.bfloat16)

    def exchanged(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum over all hosts."""
        return values if self._hosts is None else self._hosts.exchanged(values)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Nothing: gradients of the global batch's loss are the sums."""

    def read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> list[float]:
        """Fetch them side by side: to stack them would be a program for each number of scalars."""
        import torch_xla

        return [float(value.item()) for value in torch_xla._XLAC._xla_get_cpu_tensors([*partial, *whole])]

    def launch(self) -> None:
        """Have the devices begin with all that was traced, as one program; the host goes on."""
        import torch_xla

        torch_xla.sync()

    def synchronise(self) -> None:
        """Wait for the devices."""
        import torch_xla

        torch_xla.sync(wait=True)

    def peak_memory(self) -> int | None:
        """Return the resident size of this process, or None on a TPU, of whose memory PyTorch/XLA tells nothing under SPMD."""
        return None if self._kind == "TPU" else peak_resident_memory()

    def programs(self) -> int:
        """Graphs that XLA compiled in this process."""
        return int(counted("CompileTime")[0])

    def figures(self) -> dict[str, float]:
        """Compiles, executions, and transfers between host and devices: how many, and their seconds or bytes."""
        programs, executions = (
            counted("CompileTime"),
            counted("ExecuteReplicatedTime" if self._mesh is not None else "ExecuteTime"),
        )
        there, back = counted("TransferToDeviceTime"), counted("TransferFromDeviceTime")
        return {
            "compiles": programs[0],
            "compile_seconds": round(programs[1] / NANOSECONDS, 3),
            "executions": executions[0],
            "execute_seconds": round(executions[1] / NANOSECONDS, 3),
            "transfers_to_devices": there[0],
            "bytes_to_devices": int(counted("OutboundData")[1]),
            "transfers_from_devices": back[0],
            "bytes_from_devices": int(counted("InboundData")[1]),
        }

    def describe(self) -> dict[str, Any]:
        """The kind of device, how many there are, and the versions of what compiles for them."""
        import torch_xla

        generation = self._generation
        return {
            "device": "tpu",
            "name": "XLA:CPU" if generation is None else generation.name,
            **({} if generation is None else {"chips": chip_count(self.devices, generation)}),
            "devices": self.devices,
            **({"hosts": self.ranks} if self.ranks > 1 else {}),
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
        }

    @contextmanager
    def errors_in_words(self) -> Iterator[None]:
        """Full memory and lost hosts, wherever they come up.

        Raises:
            RelmError: instead of XLA's error.
        """
        try:
            yield
        except (RuntimeError, ValueError) as error:  # ValueError: what the compiler refuses (torch_xla 2.9)
            self._failed = True
            if words := in_words(str(error), self._run):
                raise RelmError(words) from error
            raise

    def close(self) -> None:
        """Let the devices finish, and take leave of the other hosts."""
        if not self._failed:  # else the same error would come once more
            with self.errors_in_words():
                self.synchronise()
        if self._hosts is not None:
            self._hosts.close()

    def _sharding(self, dimensions: int) -> Any:
        """The first axis over all devices, the others whole; None where one device has all of it."""
        import torch_xla.distributed.spmd as xs

        if self._mesh is None:
            return None
        if dimensions not in self._shardings:
            self._shardings[dimensions] = xs.ShardingSpec(self._mesh, ("data", *[None] * (dimensions - 1)))
        return self._shardings[dimensions]


def open_xla_device(run: Run, cache: Path | None, one_tpu: bool) -> XlaDevice:
    """Return the devices of a TPU, ready, or one of them."""
    return XlaDevice(run, cache, one_tpu)


def counted(metric: str) -> tuple[int, float]:
    """How often PyTorch/XLA took a measurement in this process, and the sum: seconds in nanoseconds, data in bytes."""
    import torch_xla.debug.metrics as metrics

    found = metrics.metric_data(metric)
    return (int(found[0]), float(found[1])) if found else (0, 0.0)


def metrics_report() -> str:
    """All that PyTorch/XLA measured and counted in this process, as it prints it."""
    import torch_xla.debug.metrics as metrics

    return str(metrics.metrics_report())


def shared_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """The places of each parameter that has more than one, as module and name."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(parameter), []).append((module, name))
    return [same for same in places.values() if len(same) > 1]
