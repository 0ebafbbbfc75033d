"""Each device's line of `relm doctor`: yes with its name and count, or no with the reason."""

import importlib.metadata
import importlib.util
from pathlib import Path

from relm.devices.tpu_chips import chips_here


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


def describe_ipu() -> str:
    """Return no, with the count of IPU devices: there is no module for them."""
    devices = sorted(Path("/dev").glob("ipu*"))
    found = f"{len(devices)} devices in /dev" if devices else "no /dev/ipu*"
    return f"no: {found}, and this version of relm has no IPU trainer yet (poptorch lives in Graphcore's image)"
