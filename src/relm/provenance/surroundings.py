"""The machine and the software of a step, without the host's name."""

import contextlib
import importlib.metadata
import platform
import resource
import sys
from pathlib import Path
from typing import Any

from relm.limits import total_memory, usable_cores
from relm.recipes.devices import HOST

PACKAGES = (
    "torch",
    "numpy",
    "tokenizers",
    "transformers",
    "safetensors",
    "snakemake",
    "scipy",
    "matplotlib",
    "jinja2",
    "requests",
    "pydantic",
    "torch_xla",
    "poptorch",
)


def processor() -> str:
    """Return the CPU's model, or its architecture if the system reports none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def host() -> dict[str, Any]:
    """Return the facts of the machine, without its name."""
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cores_usable": usable_cores(),
        "memory_bytes": total_memory(),
    }


def measure_resources() -> dict[str, float | int]:
    """Return the CPU seconds of this process and its ended children, and the largest peak memory of one of them."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in used), 3),
        "peak_memory_bytes": 1024 * max(each.ru_maxrss for each in used),
    }


def device() -> str:
    """Return the hardware that this process opened, as its device describes it; "cpu" if it opened none."""
    contract = sys.modules.get("relm.devices.contract")  # not imported here, because it imports torch
    return ", ".join(contract.opened_hardware) if contract is not None and contract.opened_hardware else HOST


def software() -> dict[str, str]:
    """Return the versions of relm, Python and the packages of `PACKAGES` that this process imported."""
    versions = {"relm": _version("relm"), "python": platform.python_version()}
    return versions | {name: _version(name) for name in PACKAGES if name in sys.modules}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))
