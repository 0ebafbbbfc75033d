"""The worker of an IPU run as the training loop sees it: a process that answers requests."""

import contextlib
import io
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

import relm
from relm.devices.ipu.channel import ChannelError, Message, receive, send
from relm.errors import RelmError

INTERPRETER = "RELM_IPU_PYTHON"
"""Environment variable with the path of the worker's Python."""
# Pythons that may have the SDK's PopTorch if `RELM_IPU_PYTHON` is not set; the first is that of the image ipu.
_OF_SDK = ("/opt/ipu/python3", "python3.8", "/usr/bin/python3")
# The worker's program: it imports relm from the same place as this process, and no other package of this Python.
_PROGRAM = """
import importlib.util, os, sys
place = importlib.util.spec_from_file_location("relm", sys.argv[1], submodule_search_locations=[os.path.dirname(sys.argv[1])])
sys.modules["relm"] = importlib.util.module_from_spec(place)
place.loader.exec_module(sys.modules["relm"])
from relm.devices.ipu.worker import main
main()
"""
# Seconds for a worker's first answer, before which it imports torch and PopTorch, perhaps over a network; for releasing its
# device after `close`; and for its end after its pipe has broken. Other answers have no limit.
_TIME_TO_START, _TIME_TO_CLOSE, _TIME_TO_END = 300.0, 60.0, 10.0
# Signals whose cause is outside the worker.
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def find_interpreter(backend: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of the Python that runs a backend; None: not found. The simulator's default is this Python."""
    named = environment.get(INTERPRETER)
    if named:
        return shutil.which(named)
    if backend == "simulator":
        return sys.executable
    return next((found for name in _OF_SDK if (found := shutil.which(name)) and not _is_inert(found)), None)


def _is_inert(path: str) -> bool:
    """Return True for a script that does not start Python, such as pyenv's for a version that is not enabled."""
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return False
        return subprocess.run([path, "-c", ""], capture_output=True, timeout=_TIME_TO_END).returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return True


class TimedPipe(io.RawIOBase):
    """A pipe that this process reads until a deadline."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """Read from a pipe that has no buffer."""
        self._pipe = pipe
        self.deadline: float | None = None
        """The value of `time.monotonic` after which reading raises TimeoutError; None: never."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes and return their count, 0 at the end; raise TimeoutError if there were none at the deadline."""
        if self.deadline is not None:
            waiting = select.poll()
            waiting.register(self._pipe, select.POLLIN)
            if not waiting.poll(max(0.0, self.deadline - time.monotonic()) * 1000):
                raise TimeoutError("no answer")
        return os.readv(self._pipe.fileno(), [buffer])

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()
        super().close()


def start_worker(path: str) -> "subprocess.Popen[bytes]":
    """Start the worker in the Python at `path`, with pipes for its requests and answers."""
    command = [path, "-c", _PROGRAM, str(relm.__file__)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


class WorkerProcess:
    """A running worker."""

    def __init__(self, backend: str) -> None:
        """Start the worker, and check that its Python can run the backend."""
        path = find_interpreter(backend, os.environ)
        if path is None:
            raise RelmError(describe_missing_interpreter(os.environ))
        try:
            self._process = start_worker(path)
        except OSError as error:
            raise RelmError(
                f"{INTERPRETER}: {path} cannot be started: {error}; set {INTERPRETER} to the path of a Python"
            ) from None
        assert self._process.stdin is not None, "a pipe was requested"
        assert self._process.stdout is not None, "a pipe was requested"
        self._path, self._waiting = path, False
        self._pipe = TimedPipe(self._process.stdout)
        self._requests, self._answers = io.BufferedWriter(self._process.stdin), io.BufferedReader(self._pipe)
        try:
            self.facts: Mapping[str, Any] = self.request("hello", {"backend": backend}, within=_TIME_TO_START).fields
            """The name of its hardware, and the versions of its packages."""
        except RelmError:
            self._end()
            raise

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        return self._process.pid

    def request(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        within: float | None = None,
    ) -> Message:
        """Send a request, and return the answer, which must come `within` this many seconds; None: no limit."""
        self._waiting = True
        self._pipe.deadline = None if within is None else time.monotonic() + within
        try:
            send(self._requests, Message(kind, dict(fields or {}), dict(arrays or {})))
            answer = receive(self._answers)
        except TimeoutError:
            self._end()
            raise RelmError(
                f"{self._path}: the IPU worker did not answer {kind!r} within {within:g} s and was ended. Try "
                f"`{self._path} -c 'import torch'`, or set {INTERPRETER} to the path of another Python"
            ) from None
        except (ChannelError, OSError) as error:
            self._raise_lost(kind, error)
        self._waiting = False
        if answer.kind == "error":
            if answer.fields["known"]:
                raise RelmError(answer.fields["message"])
            raise RelmError(
                f"the IPU worker failed at the request {kind!r}: {answer.fields['message']}. Report its messages above with "
                "the recipe"
            )
        return answer

    def _raise_lost(self, kind: str, error: Exception) -> NoReturn:
        """Raise the error of a worker that has ended, or no longer sends messages."""
        begun = kind != "hello"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TIME_TO_END if begun else 1)
        code = self._process.poll()
        self._end()
        found = describe_end(code) if code is not None else f"sent an invalid message: {error}"
        if not begun and code is not None and -code in _SENT_BY_OTHERS:
            raise RelmError(
                f"the IPU worker ({self._path}) {found} before its first answer, by another process or for lack of memory; "
                "run the same command again"
            ) from None
        if not begun:
            raise RelmError(
                f"{self._path}: the IPU worker {found} before its first answer; its messages are above. Set {INTERPRETER} to "
                "the path of a Python 3.8 or later with torch"
            ) from None
        raise RelmError(
            f"the IPU worker (process {self._process.pid}) {found}; its messages are above. Checkpoints are intact, and the "
            "same command resumes the run"
        ) from None

    def close(self) -> None:
        """Make the worker release its device and end; kill it if it still owes an answer."""
        if self._process.poll() is None and not self._waiting:
            with contextlib.suppress(RelmError):
                self.request("close", within=_TIME_TO_CLOSE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TIME_TO_CLOSE)
        self._end()

    def _end(self) -> None:
        """End the process, and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):  # bytes that the worker never read
                pipe.close()


def describe_end(code: int) -> str:
    """Return how a process ended.

    >>> describe_end(-9)
    'was ended by SIGKILL'
    """
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def describe_missing_interpreter(environment: Mapping[str, str]) -> str:
    """Return a sentence on the missing Python of the worker, and what to do."""
    named = environment.get(INTERPRETER)
    if named:
        path = Path(named)
        found = f"{path} is a folder" if path.is_dir() else f"program {named} not found"
        if path.is_file():
            found = f"{path} is not executable"
        return f"{INTERPRETER}: {found}; set it to the path of the Python that has PopTorch"
    return (
        f"IPUs need the Python of Graphcore's SDK, with PopTorch, but {', '.join(_OF_SDK)} do not have it; install the SDK, or "
        f"set {INTERPRETER} to the path of its Python"
    )
