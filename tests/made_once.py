"""Folders that several tests read: the first worker that needs one makes it, and each worker has its own copy."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that `make` fills, once in a session of all workers; nobody changes it."""
    session = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    made, complete = session / f"made-once-{name}", session / f"made-once-{name}.complete"
    with open(session / f"made-once-{name}.lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            make(made)
            complete.touch()
    return made


def copy_of(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a copy of such a folder, times and links kept."""
    made = made_once(factory, name, make)
    copy = factory.mktemp(name) / "copy"
    subprocess.run(["cp", "-a", str(made), str(copy)], check=True)
    return copy
