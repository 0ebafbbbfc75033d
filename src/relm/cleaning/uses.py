"""Find the files that running processes use: their open files, their commands, and Snakemake's locks."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from relm.cluster.supervision import STATE, list_locked
from relm.reporting.live_steps import list_live_steps

# Seconds for which a look at all processes is valid.
VALID = 0.5


class Uses:
    """The uses of files by processes of this machine, updated after half a second."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._time = float("-inf")

    def find(self, path: Path) -> str | None:
        """Return a phrase if a process uses a file, or anything in a folder; otherwise None."""
        if time.monotonic() - self._time > VALID:
            self._paths, self._time = set(_list_used()), time.monotonic()
        real = os.path.realpath(path)
        used = next((each for each in self._paths if each == real or each.startswith(real + os.sep)), None)
        return None if used is None else "a running process uses it"


def _list_used() -> Iterator[str]:
    """Yield the paths that other processes have open, run in, name in a step's command, or lock through Snakemake."""
    for step in list_live_steps():
        yield from map(os.path.realpath, step.words)
    states = {STATE.absolute()}
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        if process.pid == os.getpid():
            continue
        yield from _list_open(process.pid)
        folder = process.info["cwd"]
        if folder:
            yield folder
            if any("snakemake" in word for word in process.info["cmdline"] or []):
                states.add(Path(folder) / STATE)
    for state in states:
        yield from (os.path.realpath(state.parent / path) for path in list_locked(state))


def _list_open(pid: int) -> Iterator[str]:
    """Yield the paths of a process's open and mapped files; none for another user's process."""
    with contextlib.suppress(OSError):  # it ended, or is another user's
        yield from (os.readlink(entry) for entry in os.scandir(f"/proc/{pid}/fd"))
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            yield from {line.rstrip("\n").split(maxsplit=5)[5] for line in file if "/" in line}
