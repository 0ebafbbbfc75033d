"""A table of the devices that this machine can use, with the reason for each one that it cannot use."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

from relm.formatting import GIB
from relm.limits import available_memory, free_disk, nearest_existing, total_memory, usable_cores
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES
from relm.recipes.files.own_folders import CONSENT, list_consented
from relm.recipes.identity import work_folder

LONGEST_ANSWER = 10
"""Seconds that an engine's service may take to answer."""


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_containers() -> str:
    """Return the installed container engines, with a note on each that does not answer."""
    found = [f"{name} ({path}){_silent(name)}" for name in ("apptainer", "docker", "podman") if (path := shutil.which(name))]
    return ", ".join(found) or "none found; only needed to run steps in images (docs/containers.md)"


def _silent(engine: str) -> str:
    """Return a note if an engine's service does not answer; empty if it does, or if the engine has no service."""
    if engine != "docker":
        return ""
    try:
        asked = subprocess.run(
            [engine, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, timeout=LONGEST_ANSWER
        )
        reason = "" if asked.returncode == 0 else [*asked.stderr.strip().splitlines(), "no message"][0]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    return f", but its daemon DOES NOT ANSWER ({reason[:200]}): start it (systemctl start docker)" if reason else ""


def _not_writable(folder: Path) -> str:
    existing = nearest_existing(folder)
    return "" if os.access(existing, os.W_OK) else f", but {existing} is NOT WRITABLE: set RELM_WORK to another folder"


def _mirrors() -> str:
    """Return the folders that are searched before a source is fetched, with a note on each that is not a folder."""
    folders = [name for name in os.environ.get("RELM_MIRROR", "").split(os.pathsep) if name]
    folders = [name if Path(name).is_dir() else f"{name} (NOT A FOLDER: correct or unset it)" for name in folders]
    return ", ".join(folders) or "not set: files are fetched from their sources directly"


def describe_machine() -> str:
    """Return a table of this machine: processor, memory, disk, packages, devices, mirrors and tokens (their presence only)."""
    packages = ("snakemake", "torch", "tokenizers", "transformers", "numpy")
    rows = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "memory": f"{available_memory() / GIB:.1f} GiB available of {total_memory() / GIB:.1f}",
        "disk": f"{free_disk(work_folder()) / GIB:.1f} GiB free for {work_folder()}/{_not_writable(work_folder())}",
        "packages": ", ".join(f"{name} {_installed(name) or 'MISSING'}" for name in packages),
        **{declaration.name: load(declaration.check)() for declaration in DEVICES},
        "containers": describe_containers(),
        "RELM_WORK": os.environ.get("RELM_WORK", "not set: work/"),
        "RELM_MIRROR": _mirrors(),
        CONSENT: ", ".join(list_consented()) or "not set: recipes read no folder outside the project",
        "HF_TOKEN": "set" if os.environ.get("HF_TOKEN") else "not set: only needed for gated repositories",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}} {text}" for name, text in rows.items())
