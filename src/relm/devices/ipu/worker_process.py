"""The worker of an IPU run as the training loop sees it: a process that answers requests, or an error that says why not."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

import relm
from relm.devices.ipu.channel import ChannelError, Message, receive, send
from relm.errors import RelmError

INTERPRETER = "RELM_IPU_PYTHON"
"""Environment variable with the path of the Python that the worker runs in."""
# Pythons in which the SDK's PopTorch may be installed, where `RELM_IPU_PYTHON` is not set.
_OF_SDK = ("python3.8", "/usr/bin/python3")
# The worker's program: it imports relm from where this process did, and no other package of this process's Python.
_PROGRAM = """
import importlib.util, os, sys
place = importlib.util.spec_from_file_location("relm", sys.argv[1], submodule_search_locations=[os.path.dirname(sys.argv[1])])
sys.modules["relm"] = importlib.util.module_from_spec(place)
place.loader.exec_module(sys.modules["relm"])
from relm.devices.ipu.worker import main
main()
"""
# Seconds in which a worker must end after `close`, and after its pipe has broken.
_TIME_TO_CLOSE, _TIME_TO_END = 60, 10


def find_interpreter(backend: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of the Python that runs a backend; None if there is none.

    The simulator runs in this Python unless another is named.

    Args:
        backend: a name of `relm.devices.ipu.worker.BACKENDS`.
        environment: the environment variables.
    """
    named = environment.get(INTERPRETER)
    if named:
        return shutil.which(named)
    if backend == "simulator":
        return sys.executable
    return next((found for name in _OF_SDK if (found := shutil.which(name))), None)


class WorkerProcess:
    """A running worker."""

    def __init__(self, backend: str) -> None:
        """Start the worker, and check that its Python can run the backend.

        Raises:
            RelmError: there is no such Python, or it lacks a package.
        """
        path = find_interpreter(backend, os.environ)
        if path is None:
            raise RelmError(describe_missing_interpreter(os.environ))
        try:
            command = [path, "-c", _PROGRAM, str(relm.__file__)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise RelmError(
                f"{INTERPRETER}: {path} cannot be started: {error}; set {INTERPRETER} to the path of a Python"
            ) from None
        self._path, self._waiting = path, False
        try:
            self.facts: Mapping[str, Any] = self.request("hello", {"backend": backend}).fields
            """The name of its hardware, and the versions of its packages."""
        except RelmError:
            self._end()
            raise

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        return self._process.pid

    def request(
        self, kind: str, fields: Mapping[str, Any] | None = None, arrays: Mapping[str, np.ndarray] | None = None
    ) -> Message:
        """Send a request, and return the answer to it.

        Raises:
            RelmError: the worker answered with an error, or has ended.
        """
        assert self._process.stdin is not None, "a pipe was requested"
        assert self._process.stdout is not None, "a pipe was requested"
        self._waiting = True
        try:
            send(self._process.stdin, Message(kind, dict(fields or {}), dict(arrays or {})))
            answer = receive(self._process.stdout)
        except (ChannelError, OSError) as error:
            self._raise_lost(kind, error)
        self._waiting = False
        if answer.kind == "error":
            if answer.fields["known"]:
                raise RelmError(answer.fields["message"])
            raise RelmError(
                f"the IPU worker failed at the request {kind!r}: {answer.fields['message']}. Its messages above have the "
                "place; report them with the recipe"
            )
        return answer

    def _raise_lost(self, kind: str, error: Exception) -> NoReturn:
        """Raise the error of a worker that has ended, or no longer sends messages."""
        begun = kind != "hello"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TIME_TO_END if begun else 1)
        code = self._process.poll()
        self._end()
        found = describe_end(code) if code is not None else f"sent something that is not a message: {error}"
        if not begun:
            raise RelmError(
                f"{self._path}: the IPU worker {found} before its first answer; its messages are above. Expected Python 3.8 or "
                f"later with torch; set {INTERPRETER} to the path of one"
            ) from None
        raise RelmError(
            f"the IPU worker (process {self._process.pid}) {found}; its messages are above. Checkpoints are intact, and the "
            "same command resumes the run"
        ) from None

    def close(self) -> None:
        """Have the worker release its device, and end; one whose answer was not awaited is killed."""
        if self._process.poll() is None and not self._waiting:
            with contextlib.suppress(RelmError):
                self.request("close")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TIME_TO_CLOSE)
        self._end()

    def _end(self) -> None:
        """End the process, and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # bytes that the worker never read
                    pipe.close()


def describe_end(code: int) -> str:
    """Return how a process ended.

    >>> describe_end(-9)
    'was ended by SIGKILL'
    """
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def describe_missing_interpreter(environment: Mapping[str, str]) -> str:
    """Return a sentence on the Python of the worker, which was not found, and the way out."""
    named = environment.get(INTERPRETER)
    if named:
        return f"{INTERPRETER}: there is no program {named}; set it to the path of the Python that has PopTorch"
    return (
        f"IPUs need the Python of Graphcore's SDK, with PopTorch, and neither {' nor '.join(_OF_SDK)} was found; install the "
        f"SDK, or set {INTERPRETER} to the path of that Python"
    )
