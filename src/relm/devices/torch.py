"""CPU and CUDA, the devices that torch itself drives."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relm.devices.contract import Device, Forward, Model, autocast
from relm.devices.first_calls import make_first_calls
from relm.devices.host_copies import fit_into_memory
from relm.devices.private_cache import keep_compiler_cache
from relm.devices.processes import Processes, read_rank
from relm.errors import RelmError
from relm.limits import peak_resident_memory, usable_cores
from relm.recipes.devices import DEVICES, PRECISION
from relm.recipes.run import Run

# Settings that CUDA's libraries read when they start, so that two runs give the same bits: cuBLAS gets a workspace for each
# stream, NCCL one order of summation for messages of every size, and no sums within the switch.
_SAME_BITS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
# The recipe's names for the precision of float32 products, which are PyTorch/XLA's, and torch's own.
PRECISIONS = {"default": "medium", "high": "high", "highest": "highest"}


class TorchDevice(Device):
    """A CPU or GPUs."""

    def __init__(self, run: Run) -> None:
        """Set torch up for `run.device`, cpu or cuda, as the only process or one of several."""
        keep_compiler_cache(os.environ)  # even if run.compile is off: attention over documents is compiled on a GPU
        self.rank, self.ranks, local_rank, local_ranks = read_rank(run.processes)
        self.part, self.parts = self.rank, self.ranks
        if run.device == "cuda":
            for name, value in _SAME_BITS.items() if run.deterministic else ():
                os.environ.setdefault(name, value)
            require_gpus(local_ranks)
            torch.cuda.set_device(local_rank)
        self._device = torch.device(run.device, local_rank) if run.device == "cuda" else torch.device("cpu")
        self.asynchronous = run.device == "cuda"
        if run.device == "cpu":
            self.elements_per_operation = 1 << 18
        self._run = run
        self._compiles = DEVICES[run.device].compiles if run.compile is None else run.compile
        if self._compiles:
            prepare_compiler(run)
        self.threads = run.threads or max(1, usable_cores() // local_ranks)
        torch.set_num_threads(self.threads)
        if run.device == "cpu":
            make_first_calls(self.threads)
        # Unlike torch.use_deterministic_algorithms, this does not import the compiler, which takes seconds.
        torch.set_deterministic_debug_mode("error" if is_deterministic(run) else "default")
        # Filling new memory only helps code that reads it before writing, and costs a pass.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self._precision_before = torch.get_float32_matmul_precision()
        if run.float32_matmul_precision is not None:
            torch.set_float32_matmul_precision(PRECISIONS[run.float32_matmul_precision])
        self._processes = Processes(self._device) if self.ranks > 1 else None
        self._clock: tuple[Any, float] | None = None
        """The event of the newest time, and that time."""
        self._pinned: list[Tensor] = []
        """The memory of all copies to the host. Torch keeps pinned memory, so releasing it would not free it."""

    def place(self, model: Model) -> Model:
        """Return the same module, moved."""
        return model.to(self._device)

    def forward(self, terms: Forward) -> Forward:
        """Return the forward pass compiled for static shapes, or unchanged."""
        if not self._compiles:
            return terms
        return cast(Forward, torch.compile(terms, dynamic=False, fullgraph=True))

    def seed(self, number: int) -> None:
        """Seed the generators of the CPU and of this GPU."""
        super().seed(number)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(number)

    def stage(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """Return tensors that share the arrays' memory; for a GPU, copies in pinned memory."""
        tensors = super().stage(batch)
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._device.type == "cuda" else tensors

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch on the device, copied asynchronously."""
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}

    def autocast(self, precision: str) -> AbstractContextManager[None]:
        """Return the context that computes matrix products in `precision`."""
        return autocast(self._device.type, precision)

    def sum_counts(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum over all ranks."""
        return values if self._processes is None else self._processes.sum_counts(values)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """All-reduce each gradient in place."""
        if self._processes is not None:
            self._processes.sum_gradients(parameters)

    def begin_read(self, partial: Sequence[Tensor], whole: Sequence[Tensor] = ()) -> Callable[[], list[float]]:
        """Read the values at once; a GPU copies them in its order of operations, before the next step."""
        values = torch.stack([value.float() for value in partial])
        if self._processes is not None:
            values = self._processes.sum_scalars(values)
        if whole:
            values = torch.cat([values, torch.stack([value.float() for value in whole])])
        if not self.asynchronous:
            read: list[float] = values.tolist()
            return lambda: read
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

        def wait() -> list[float]:
            copied.synchronize()
            read: list[float] = copy.tolist()
            return read

        return wait

    def clock(self) -> Callable[[], float]:
        """Return the GPU's time: the host may read a figure a step later."""
        if not self.asynchronous:
            return super().clock()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()

        def ended() -> float:
            event.synchronize()
            # Counted from the last event: milliseconds in float32 are too coarse for hours.
            before, seconds = self._clock or (event, 0.0)
            self._clock = event, seconds + before.elapsed_time(event) / 1000
            return self._clock[1]

        return ended

    def copy_to_host(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return clones; a GPU's tensors are all sent to pinned memory before the host waits."""
        if self._device.type == "cpu":
            return super().copy_to_host(tensors)
        wanted = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if wanted != [(tensor.shape, tensor.dtype) for tensor in self._pinned]:
            self._pinned = []
            if not fit_into_memory(tensors, times=2):  # torch rounds pinned memory up to a power of two
                return None
            self._pinned = [torch.empty(shape, dtype=dtype, pin_memory=True) for shape, dtype in wanted]
        for copy, tensor in zip(self._pinned, tensors, strict=True):
            copy.copy_(tensor.detach(), non_blocking=True)
        torch.cuda.synchronize()
        return self._pinned

    def synchronise(self) -> None:
        """Wait for the GPU; a CPU has always finished."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def peak_memory(self) -> int:
        """Return the most that torch's allocator reserved on the GPU; on a CPU the peak resident size of this process."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved()
        return peak_resident_memory()

    def programs(self) -> int:
        """Return the count of graphs that torch.compile made."""
        if not self._compiles:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def describe(self) -> dict[str, Any]:
        """Return the device, torch's version, and whatever else decides how sums are rounded."""
        choices = {
            "compile": self._compiles or None,
            "processes": self.ranks if self.ranks > 1 else None,
            "loss_chunk": self._run.loss_chunk,
        }
        (precision,) = (ours for ours, theirs in PRECISIONS.items() if theirs == torch.get_float32_matmul_precision())
        facts = {
            PRECISION: precision,
            "torch": torch.__version__,
            **{key: value for key, value in choices.items() if value is not None},
        }
        if self._device.type == "cuda":
            exact = {} if self._run.deterministic else {"deterministic": False}
            return {"device": "cuda", "name": torch.cuda.get_device_name(), **facts, **exact}
        return {"device": "cpu", "name": torch.backends.cpu.get_cpu_capability(), "threads": self.threads, **facts}

    def close(self) -> None:
        """Restore the precision of float32 products, and destroy the process group."""
        torch.set_float32_matmul_precision(self._precision_before)
        if self._processes is not None:
            self._processes.close()


def is_deterministic(run: Run) -> bool:
    """Return True if kernels that give other bits each time are errors: always on a CPU, which has no faster ones."""
    return run.deterministic or run.device == "cpu"


def open_torch_device(run: Run, cache: Path | None, one_tpu: bool) -> TorchDevice:
    """Return the CPU or GPUs, ready; `cache` and `one_tpu` have no effect."""
    return TorchDevice(run)


def prepare_compiler(run: Run) -> None:
    """Set torch.compile up, so that the same code gives the same programs if `run.deterministic` is set."""
    # Imported here because it takes a second, and most runs on a CPU do not need it.
    from torch._inductor import config, cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    # Otherwise torch times kernels to choose one, and another choice rounds differently.
    config.deterministic = is_deterministic(run)
    if run.device == "cuda" and not has_triton():
        raise RelmError(
            "run.compile: torch.compile needs Triton, which is missing or too new for this GPU; install it, or set "
            "run.compile: false"
        )
    if run.device == "cpu":
        try:
            cpp_builder.get_cpp_compiler()
        except InvalidCxxCompiler:
            raise RelmError(
                "run.compile: torch.compile needs a C++ compiler on a CPU, but CXX and g++ name none; install g++, "
                "or set run.compile: false"
            ) from None


def require_gpus(count: int) -> None:
    """Raise unless this machine has at least `count` usable GPUs."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found >= count:
        return
    if found:
        raise RelmError(f"run.processes: {count} processes of this machine need as many GPUs, found {found}; start fewer")
    build = "has no CUDA" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda}"
    raise RelmError(
        f"run.device or --device: found no usable GPU for cuda. This torch ({torch.__version__}) {build}. "
        "Install NVIDIA's driver, and a CUDA build of torch with `make DEVICE=cuda environment`, or choose cpu"
    )
