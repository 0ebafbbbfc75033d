"""Build relm's wheel for an image: outside the image, from a copy of the sources, with the same bytes each time."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from relm.errors import RelmError

# What pip needs to build the wheel.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "envs/build_wheel.py")


def build_wheel(checkout: Path, folder: Path) -> Path:
    """Build a checkout's wheel into a folder, and return its path; the checkout stays unchanged."""
    with tempfile.TemporaryDirectory(prefix="relm-wheel-") as scratch:
        copy = Path(scratch) / "relm"
        for source in SOURCES:
            _copy(checkout / source, copy / source)
        command = [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"),
            *("--no-build-isolation", "--wheel-dir", str(folder), str(copy)),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RelmError(f"{checkout}: pip could not build relm's wheel:\n" + "\n".join(done.stdout.splitlines()[-12:]))
    (wheel,) = folder.glob("relm-*.whl")
    return wheel


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        shutil.copyfile(source, destination)
