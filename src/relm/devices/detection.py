"""Each device's line of `relm doctor`: yes with its name and count, or no with the reason."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from relm.devices.gpus import gpus_here
from relm.devices.ipu.worker_process import INTERPRETER, describe_missing_interpreter, find_interpreter
from relm.devices.tpu_chips import chips_here

SDK = "POPLAR_SDK_ENABLED"
"""Environment variable that enabling Graphcore's SDK sets."""


def describe_cpu() -> str:
    """Return yes: every machine has one."""
    return "yes"


def describe_cuda() -> str:
    """Return the name and count of NVIDIA GPUs, or why torch finds none."""
    import torch

    if torch.cuda.is_available():
        return f"yes: {torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} in all"
    if torch.version.cuda is None:
        return f"no: torch {torch.__version__} is built without CUDA; make the environment with `make DEVICE=cuda environment`"
    return "no: torch finds no NVIDIA GPU or driver; `nvidia-smi` says more"


def find_missing_cuda() -> str | None:
    """Return what the environment lacks to train on GPUs, from the version of torch; None if nothing."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed"
    return f"torch {version} is built without CUDA" if version.endswith("+cpu") else None


def find_absent_gpus(count: int) -> str | None:
    """Return what this machine lacks to train on this many GPUs, by its driver; None if nothing."""
    found = len(gpus_here())
    if found >= count:
        return None
    if found:
        return (
            f"run.processes is {count:,}, one for each GPU, but this machine has {found:,}; lower it, or choose another machine"
        )
    return (
        "found no NVIDIA GPU or driver (libcuda.so.1); `nvidia-smi` says more. Run it on another machine, or with "
        "run.device: cpu"
    )


def find_missing_xla() -> str | None:
    """Return what the environment lacks to train on TPUs, or on a CPU that emulates them; None if nothing."""
    return None if importlib.util.find_spec("torch_xla") else "torch_xla is not installed"


def describe_tpu() -> str:
    """Return the generation and count of TPU chips, or what is missing."""
    try:
        version = importlib.metadata.version("torch_xla")
    except importlib.metadata.PackageNotFoundError:
        return "no: torch_xla is not installed; make the environment with `make DEVICE=tpu environment`"
    chips = chips_here()
    if not chips:
        return "no: the PCI bus of this machine has no TPU chip"
    return f"yes: {chips[0].name}, chips on this machine: {len(chips)}, torch_xla {version}"


def find_missing_ipu(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what this machine lacks to train on IPUs, by its files and environment variables; None if nothing."""
    if environment.get(SDK) or environment.get(INTERPRETER):
        return None if find_interpreter("poptorch", environment) else describe_missing_interpreter(environment)
    return f"Graphcore's SDK is not enabled: install it and `source SDK/enable`, which sets {SDK}, or set {INTERPRETER}"


def describe_ipu(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str:
    """Return the IPUs that this machine reaches and the version of PopTorch, or what is missing."""
    missing, python = find_missing_ipu(environment), find_interpreter("poptorch", environment)
    if missing is not None or python is None:
        return f"no: {missing}"
    version = _find_poptorch(python)
    if version is None:
        return f"no: {python} has no poptorch; install the wheel of Graphcore's SDK there, or set {INTERPRETER} to its Python"
    found = _find_ipus(environment, root)
    if found is None:
        return (
            f"no: poptorch {version} ({python}) finds no IPU: /dev/ipu0 is missing, and neither IPUOF_VIPU_API_PARTITION_ID "
            "nor IPUOF_CONFIG_PATH names a Pod's partition; relm rehearse NAME --compile-only needs none"
        )
    return f"yes: {found}, poptorch {version} ({python})"


def describe_ipu_simulator(environment: Mapping[str, str] = os.environ) -> str:
    """Return the Python in which the CPU simulates IPUs, or why none was found."""
    python = find_interpreter("simulator", environment)
    if python is None:
        return f"no: {describe_missing_interpreter(environment)}"
    return f"yes: pipelines of any number of IPUs on the CPU, in {python}"


def _find_poptorch(python: str) -> str | None:
    """Return the version of PopTorch in a Python; None: not installed, or the Python does not start."""
    asked = "import importlib.metadata as metadata; print(metadata.version('poptorch'))"
    try:
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _find_ipus(environment: Mapping[str, str], root: Path) -> str | None:
    """Return the IPUs of this machine's cards, or the Pod's partition that the environment names; None: neither."""
    cards = [path for path in root.glob("dev/ipu*") if re.fullmatch(r"ipu\d+", path.name)]
    if cards:
        return f"{len(cards)} in this machine"
    if partition := environment.get("IPUOF_VIPU_API_PARTITION_ID"):
        return f"partition {partition} of a Pod"
    if described := environment.get("IPUOF_CONFIG_PATH"):
        return f"the partition of a Pod that {described} describes"
    return None
