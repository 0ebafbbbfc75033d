"""Each device's line of `relm doctor`: yes with its name and count, or no with the reason."""

import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path

from relm.devices.ipu.worker_process import INTERPRETER, describe_missing_interpreter, find_interpreter
from relm.devices.tpu_chips import chips_here

SDK = "POPLAR_SDK_ENABLED"
"""Environment variable that enabling Graphcore's SDK sets."""
_VERSIONS = (
    "from importlib.metadata import version; print(*(f'{name} {version(name)}' for name in ('poptorch', 'torch')), sep=', ')"
)


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
    """Return what the environment lacks to train on GPUs, from the version of torch alone; None if nothing."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed"
    return f"torch {version} is built without CUDA" if version.endswith("+cpu") else None


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
        return "no: there is no TPU chip on the PCI bus of this machine"
    return f"yes: {chips[0].name}, chips on this machine: {len(chips)}, torch_xla {version}"


def find_missing_ipu() -> str | None:
    """Return what this machine lacks to train on IPUs, by its files and environment variables alone; None if nothing."""
    if os.environ.get(SDK) or os.environ.get(INTERPRETER):
        return None if find_interpreter("poptorch", os.environ) else describe_missing_interpreter(os.environ)
    return f"Graphcore's SDK is not enabled: install it and `source SDK/enable`, which sets {SDK}, or set {INTERPRETER}"


def describe_ipu() -> str:
    """Return the versions of the SDK's packages and the count of IPUs of this machine, or what is missing."""
    missing = find_missing_ipu()
    if missing is not None:
        return f"no: {missing}"
    python = find_interpreter("poptorch", os.environ)
    assert python is not None, "it was found"
    try:
        done = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"no: {python} has no poptorch; set {INTERPRETER} to the Python that Graphcore's SDK is installed in"
    cards, pod = len(list(Path("/dev").glob("ipu[0-9]*_ex"))), sorted(name for name in os.environ if name.startswith("IPUOF_"))
    if not cards and not pod:
        return f"no: {done.stdout.strip()} in {python}, but there is no /dev/ipu*, and no variable of a Pod (IPUOF_*) is set"
    return f"yes: {done.stdout.strip()}, {f'{cards} IPUs in /dev' if cards else f'a Pod ({pod[0]})'}"
