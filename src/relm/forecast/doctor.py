"""A table of what this machine can run, and why it cannot run the rest."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path

from relm.devices.tpu_chips import chips_here
from relm.formatting import GIB
from relm.limits import available_memory, free_disk, nearest_existing, total_memory, usable_cores
from relm.recipes.identity import work_folder


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda() -> str:
    import torch

    if torch.cuda.is_available():
        return f"yes: {torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} in all"
    if torch.version.cuda is None:
        return f"no: torch {torch.__version__} is built without CUDA; make the environment with `make DEVICE=cuda environment`"
    return "no: torch finds no NVIDIA GPU or driver; `nvidia-smi` says more"


def _tpu() -> str:
    if _installed("torch_xla") is None:
        return "no: torch_xla is not installed; make the environment with `make DEVICE=tpu environment`"
    chips = chips_here()
    if not chips:
        return "no: there is no TPU chip on the PCI bus of this machine"
    return f"yes: {chips[0].name}, chips on this machine: {len(chips)}, torch_xla {_installed('torch_xla')}"


def _ipu() -> str:
    devices = sorted(Path("/dev").glob("ipu*"))
    found = f"{len(devices)} devices in /dev" if devices else "no /dev/ipu*"
    return f"no: {found}, and this version of relm has no IPU trainer yet (poptorch lives in Graphcore's image)"


def _containers() -> str:
    found = [f"{name} ({path})" for name in ("apptainer", "docker", "podman") if (path := shutil.which(name))]
    return ", ".join(found) or "none found; only needed to run steps in images (docs/containers.md)"


def _not_writable(folder: Path) -> str:
    existing = nearest_existing(folder)
    return "" if os.access(existing, os.W_OK) else f", but {existing} is NOT WRITABLE: set RELM_WORK to another folder"


def _mirrors() -> str:
    """Return the folders that are searched before a source is fetched, with a note where one is not a folder."""
    folders = [name for name in os.environ.get("RELM_MIRROR", "").split(os.pathsep) if name]
    folders = [name if Path(name).is_dir() else f"{name} (NOT A FOLDER: correct or unset it)" for name in folders]
    return ", ".join(folders) or "not set: sources are asked directly"


def describe_machine() -> str:
    """Return a table of what is here: processor, memory, disk, packages, devices, mirrors and tokens (their presence only)."""
    packages = ("snakemake", "torch", "tokenizers", "transformers", "numpy")
    rows = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "memory": f"{available_memory() / GIB:.1f} GiB available of {total_memory() / GIB:.1f}",
        "disk": f"{free_disk(work_folder()) / GIB:.1f} GiB free where {work_folder()}/ lies{_not_writable(work_folder())}",
        "packages": ", ".join(f"{name} {_installed(name) or 'MISSING'}" for name in packages),
        "cpu": "yes",
        "cuda": _cuda(),
        "tpu": _tpu(),
        "ipu": _ipu(),
        "containers": _containers(),
        "RELM_WORK": os.environ.get("RELM_WORK", "not set: work/"),
        "RELM_MIRROR": _mirrors(),
        "HF_TOKEN": "set" if os.environ.get("HF_TOKEN") else "not set: only needed for gated repositories",
    }
    return "\n".join(f"{name:<12} {text}" for name, text in rows.items())
