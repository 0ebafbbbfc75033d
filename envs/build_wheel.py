"""The build backend of pyproject.toml: that of setuptools, whose wheels are rewritten so that the same sources give the same
bytes, whatever the clock, the umask, the file times and what an earlier build left behind.
"""

import os
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (the other hooks)

# The first moment that a zip archive can state.
TIME = (1980, 1, 1, 0, 0, 0)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel in a fresh folder: setuptools takes what an earlier build left in ``build/`` into the next one."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "settings.cfg"
        settings.write_text(f"[build]\nbuild_base = {scratch}/build\n")
        before = os.environ.get("DIST_EXTRA_CONFIG")
        os.environ["DIST_EXTRA_CONFIG"] = str(settings)
        try:
            name = build_meta.build_wheel(scratch, config_settings, metadata_directory)
        finally:
            del os.environ["DIST_EXTRA_CONFIG"]
            if before is not None:
                os.environ["DIST_EXTRA_CONFIG"] = before
        copy_wheel(Path(scratch) / name, Path(wheel_directory) / name)
    return name


def copy_wheel(wheel: Path, destination: Path) -> None:
    """Copy a wheel with its files in the order of their names, the list of them last, and the same time and mode for all."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(destination, "w", zipfile.ZIP_DEFLATED) as copy:
        for name in sorted(source.namelist(), key=lambda name: (".dist-info/" in name, name.endswith("/RECORD"), name)):
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            copy.writestr(entry, source.read(name))
