"""Stop requests by signal, stopping with the parent process, and the lock of a run folder."""

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

from relm.artifact import require_regular_file
from relm.errors import RelmError

STOP_WITH_PARENT = "RELM_STOP_WITH_PARENT"
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Preempted(RelmError):
    """Training stopped on request and saved a checkpoint. The exit code is EX_TEMPFAIL of sysexits.h: try again later."""

    exit_code = 75


class StopRequest:
    """A flag that is true once TERM, INT or HUP was received."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.ends_process = False
        """True once this process is about to end and ignores TERM: a launcher sends it to the others when the first rank has
        ended, and would change their exit status."""

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """Return the signal's name."""
        return self.signal.name if self.signal else "nothing"

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn TERM, INT and HUP into a request that the loop reads between steps.

    A terminal that is closed, or whose connection is lost, sends HUP; under nohup, which ignores it, training continues.
    """
    request = StopRequest()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request._note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if request.ends_process and number == signal.SIGTERM else handler)
    if request.signal is not None and before[request.signal] is _end:  # after the last step, when the loop no longer reads it
        _end(request.signal, None)


class _AskedToEnd(BaseException):
    """A signal outside the training loop. Not a RelmError, so that no handler of faults catches it."""


def _end(number: int, frame: FrameType | None) -> None:
    raise _AskedToEnd(signal.Signals(number).name)


@contextlib.contextmanager
def ends_when_asked() -> Iterator[None]:
    """End at once, with `Preempted`, on TERM, INT or HUP: no step is running, and files are whole or absent."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, _end) for number in signals if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    except _AskedToEnd as asked:
        raise Preempted(f"stopped by {asked}; the same command resumes without loss") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_with_parent() -> None:
    """Have Linux send TERM to this process when its parent dies, if RELM_STOP_WITH_PARENT is 1 or torchrun started it.

    Otherwise a trainer would survive when only its shell is killed. torchrun gives each process a separate session, which a
    signal to the launcher's process group does not reach.
    """
    requested = os.environ.get(STOP_WITH_PARENT) == "1" or "TORCHELASTIC_RUN_ID" in os.environ
    if requested and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Lock a run folder for this process; the system releases the lock however the process ends."""
    with contextlib.ExitStack() as stack:
        file = None
        while file is None or not _is_still_at(path, file.fileno()):  # `relm gc` may have removed it meanwhile
            path.parent.mkdir(parents=True, exist_ok=True)
            require_regular_file(path)
            file = stack.enter_context(open(path, "a+", encoding="utf-8"))
            if not _acquired(file.fileno()):
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise RelmError(
                    f"{path.parent}: another process trains here already (pid {owner}). Wait for it, or stop it with "
                    f"kill {owner}: it saves a checkpoint, and the same command resumes the run"
                )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Return True if a path still names the opened file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _acquired(descriptor: int) -> bool:
    """Try for half a second to get the lock, which a check for a running trainer holds for an instant."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.1)
    return False
