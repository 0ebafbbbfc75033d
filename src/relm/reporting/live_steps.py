"""The steps of relm that are running on this machine, and the locks that trainers hold."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil


class LiveStep(NamedTuple):
    """A process of this machine that runs one step."""

    name: str
    """The step, such as `evaluate`."""
    started: float
    """Seconds since the epoch."""
    pid: int
    words: frozenset[str]
    """Its arguments as absolute paths, resolved from its working folder."""

    def names_any(self, files: Iterable[Path]) -> bool:
        """Return True if its command names one of these files."""
        return any(os.path.abspath(file) in self.words for file in files)

    def works_in(self, folder: Path) -> bool:
        """Return True if its command names a file in a folder."""
        return any(word.startswith(os.path.abspath(folder) + os.sep) for word in self.words)


def list_live_steps() -> list[LiveStep]:
    """Return the steps that run on this machine, oldest first."""
    found = [step for process in psutil.process_iter(["pid", "cmdline", "cwd", "create_time"]) for step in _read(process)]
    return sorted((step for step in found if step.pid != os.getpid()), key=lambda step: step.started)


def _read(process: psutil.Process) -> Iterator[LiveStep]:
    command, folder = process.info["cmdline"] or [], process.info["cwd"]
    position = next((number for number, word in enumerate(command) if os.path.basename(word) == "relm"), None)
    if position is None or not folder:
        return
    words = command[position + 1 :]
    paths = frozenset(os.path.normpath(os.path.join(folder, word)) for word in words)
    yield LiveStep(words[0] if words else "", process.info["create_time"], process.info["pid"], paths)


def is_locked(path: Path) -> bool:
    """Return True if a trainer holds a run's lock. The probe takes it for an instant; a trainer waits for that."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # absent, or not ours to read
        return False
    return False
