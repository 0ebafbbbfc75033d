"""Checks of recipe, environment and machine before a step on XLA devices, and the start of their runtime."""

import contextlib
import importlib.metadata
import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from relm.devices.private_cache import make_private_folder
from relm.devices.tpu_chips import Generation
from relm.devices.xla_precision import xla_precision
from relm.errors import RelmError
from relm.recipes.devices import DEVICES
from relm.recipes.run import Run

logger = logging.getLogger(__name__)

_WITHOUT_A_TPU = (
    "to try the code on a CPU set PJRT_DEVICE=CPU and CPU_NUM_DEVICES=8 in the environment; to train on a CPU set run.device "
    "to cpu"
)


def require_supported(run: Run) -> None:
    """Raise if a recipe requests features that XLA devices do not support."""
    if run.processes != 1:
        raise RelmError(
            f"run.processes is {run.processes}, but one process drives all TPU cores of a host; leave run.processes out"
        )
    if run.compile is False:
        raise RelmError("run.compile: false is not possible on a TPU, for which every step is compiled; leave run.compile out")


def requested_kind(environment: Mapping[str, str]) -> str:
    """Return the value of PJRT_DEVICE, TPU or CPU; TPU where it is not set."""
    kind = environment.get("PJRT_DEVICE") or "TPU"
    if kind not in ("TPU", "CPU"):
        raise RelmError(f"PJRT_DEVICE is {kind!r}, expected TPU, or CPU to try the code without one; correct or unset it")
    count = environment.get("CPU_NUM_DEVICES", "1")
    if kind == "CPU" and not (count.isdecimal() and int(count)):
        raise RelmError(f"CPU_NUM_DEVICES is {count!r}, expected a whole number above 0: the count of simulated devices")
    return kind


def read_host_rank(environment: Mapping[str, str], kind: str, one: bool = False) -> tuple[int, int]:
    """Return the rank of this host and the count of hosts that take each step together, from torchrun's variables."""
    names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    host, hosts, here = (int(environment.get(name, default)) for name, default in names.items())
    if one and hosts > 1:
        raise RelmError(
            f"--one-tpu, or a run.topology of one device, needs a single host, found WORLD_SIZE={hosts}; unset RANK and "
            "WORLD_SIZE"
        )
    if kind == "TPU" and here != 1:
        raise RelmError(
            f"{here} processes were started on this host, but one process drives all its TPU cores; start one a host"
        )
    if kind == "CPU" and hosts > 1:
        logger.warning("PJRT_DEVICE=CPU: %d processes run together, but each computes every step in full", hosts)
    return host, hosts


def import_torch_xla() -> None:
    """Import torch_xla."""
    try:
        import torch_xla  # noqa: F401
    except ModuleNotFoundError as error:
        raise RelmError(
            f"run.device or --device: tpu needs torch_xla, and {error.name} is not installed here (torch is "
            f"{torch.__version__}); make the TPU's environment with `make DEVICE=tpu environment`, or choose cpu"
        ) from None
    except ImportError as error:
        raise RelmError(
            f"run.device: tpu: torch_xla does not match torch {torch.__version__} ({error}); make the TPU's environment, whose "
            "versions match, with `make DEVICE=tpu environment`"
        ) from None
    except (OSError, KeyError, TypeError) as error:
        # On a machine with TPU chips, the import reads their version from the network, or unchecked from variables.
        raise RelmError(
            f"run.device: tpu: torch_xla cannot find the type of this TPU: {type(error).__name__}: {error}. It reads the type, "
            "such as v3-8, from the TPU VM's metadata server, or from the environment if TPU_SKIP_MDS_QUERY is set. Do not use "
            "a proxy for metadata.google.internal, or set TPU_SKIP_MDS_QUERY=1 and TPU_ACCELERATOR_TYPE"
        ) from error


def require_tpu(chips: int, hosts: int) -> None:
    """Raise if this machine has no TPU. Call it before the runtime starts, which would wait for one or end the process."""
    import torch_xla
    import torch_xla._internal.tpu as tpu

    if not chips:
        raise RelmError(
            "run.device: tpu needs a TPU, found none on this machine. Run the same command on a TPU VM (the machine that "
            f"contains the TPU); {_WITHOUT_A_TPU}"
        )
    if not torch_xla._found_libtpu:
        raise RelmError(
            "run.device: tpu: libtpu, the TPU's driver, is not installed; make the TPU's environment with "
            "`make DEVICE=tpu environment`, and unset TPU_LIBRARY_PATH"
        )
    # If environment and metadata lack the count of hosts, `open_devices` compares it later.
    with contextlib.suppress(OSError, KeyError, IndexError):
        require_hosts(tpu.num_tpu_workers(), hosts)


def require_hosts(there: int, started: int) -> None:
    """Raise unless one process was started for each of the TPU's hosts."""
    if there != started:
        raise RelmError(
            f"run.device: tpu: this TPU has {there} hosts, found WORLD_SIZE={started}. Run the same command on every host, "
            f"with RANK=0 to {there - 1}, WORLD_SIZE={there}, and the address and a free port of the host of rank 0 as "
            "MASTER_ADDR and MASTER_PORT in the environment"
            if there > 1
            else f"run.device: tpu: this TPU has one host, found WORLD_SIZE={started}; unset RANK and WORLD_SIZE"
        )


def keep_programs(cache: Path, generation: Generation, host: int, hosts: int) -> None:
    """Keep compiled programs below a folder; this has no effect once the runtime has started.

    PyTorch/XLA finds programs only by the traced operations and compiler flags. A program of another generation of chips or
    another libtpu may end the process, and one with another precision of float32 products would replace the requested one:
    each has a separate folder. So does each host, because hosts that share a folder would read programs that another one is
    still writing.
    """
    import torch_xla
    import torch_xla.runtime as xr

    if torch_xla._XLAC._xla_runtime_is_initialized():
        return
    made_for = f"{generation.name.replace(' ', '-').replace('/', '-')}-libtpu-{importlib.metadata.version('libtpu')}"
    if (precision := xla_precision()) != DEVICES["tpu"].float32_matmul_precision:
        made_for += f"-float32-{precision}"
    folder = make_private_folder(cache / made_for)
    xr.initialize_cache(str(make_private_folder(folder / f"host-{host}") if hosts > 1 else folder))


def open_devices(kind: str, hosts: int, one: bool = False) -> int:
    """Start the runtime and return the count of devices to train on, those of other hosts included.

    A single device is used without SPMD, which always uses all.
    """
    import torch_xla.runtime as xr

    try:
        if not one:
            xr.use_spmd()
        devices, there = xr.global_runtime_device_count(), xr.process_count()
    except RuntimeError as error:
        what = str(error).strip().partition("\n")[0]
        held = "another process may hold it (see `sudo lsof /dev/accel* /dev/vfio/*`), or libtpu has another version than "
        advice = (
            f"{held}in envs/torch-tpu.txt: `make DEVICE=tpu environment` installs that" if kind == "TPU" else _WITHOUT_A_TPU
        )
        raise RelmError(f"run.device: the {kind} cannot be opened: {what}; {advice}") from error
    if kind == "TPU":
        require_hosts(there, hosts)
    return 1 if one else int(devices)
