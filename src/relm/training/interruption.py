"""Being stopped: signals that ask for an end, a parent that dies, and a second process that wants the same run."""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from relm.errors import RelmError

STOP_WITH_PARENT = "RELM_STOP_WITH_PARENT"
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Preempted(RelmError):
    """Training was asked to stop and saved a checkpoint. The exit code is EX_TEMPFAIL of sysexits.h: try again later."""

    exit_code = 75


class StopRequest:
    """Whether TERM or INT has come; while this is open they do nothing else."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """What came, in words."""
        return self.signal.name if self.signal else "nothing"

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn TERM and INT into a request that the loop looks at between steps."""
    request = StopRequest()
    before = {number: signal.signal(number, request._note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_with_parent() -> None:
    """With RELM_STOP_WITH_PARENT=1, on Linux, get TERM when the parent dies: a shell killed alone leaves no trainer behind.

    So does torchrun: it gives each process a session of its own, which a kill of everything else does not reach.
    """
    wanted = os.environ.get(STOP_WITH_PARENT) == "1" or "TORCHELASTIC_RUN_ID" in os.environ
    if wanted and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Hold a run folder for this process alone; the system gives the lock back however the process ends.

    Raises:
        RelmError: another process trains there; names it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        if not _acquired(file.fileno()):
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise RelmError(
                f"{path.parent}: another process trains here already (pid {owner}); wait for it, or stop it with "
                f"kill {owner}: it saves a checkpoint, and the same command goes on"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _acquired(descriptor: int) -> bool:
    """Try for a moment: whoever only asks whether a run is going on holds the lock for an instant too."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.1)
    return False
