"""Folders that several tests read: the first worker that needs one makes it, and each worker has a copy of its own."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


def copy_of(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a copy of the folder that `make` fills, times and links kept; it is made once in a session of all workers."""
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
    copy = factory.mktemp(name) / "copy"
    subprocess.run(["cp", "-a", str(made), str(copy)], check=True)
    return copy
