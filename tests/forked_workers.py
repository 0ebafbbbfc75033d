"""Workers of simulated IPUs, forked from a process that has imported torch: real processes without three seconds of imports.

A forked worker is a child of the fork server, and has another command line and environment than one that is started. Tests of
the process itself start it: tests/devices/ipu/test_worker_process.py, and a run or two of each kind elsewhere.
"""

import os
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import IO

from relm.devices.ipu import worker
from tiny_runs import FORKS


class ForkedWorker:
    """A running worker, with what `relm.devices.ipu.worker_process` uses of `subprocess.Popen`."""

    def __init__(self) -> None:
        requests, self.stdin = _pipe(theirs_reads=True)
        answers, self.stdout = _pipe(theirs_reads=False)
        self._process = FORKS.Process(target=_serve, args=(requests, answers))
        with requests, answers:
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs after `timeout` seconds.
        """
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
        return code

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def start_forked(path: str) -> ForkedWorker:
    """Return a forked worker in place of one in the Python at `path`, which is this one."""
    assert path == sys.executable
    return ForkedWorker()


def _pipe(theirs_reads: bool) -> tuple[Connection, IO[bytes]]:
    """Return the worker's end of a pipe, and ours."""
    read, write = os.pipe()
    if theirs_reads:
        return Connection(read, writable=False), open(write, "wb", buffering=0)
    return Connection(write, readable=False), open(read, "rb", buffering=0)


def _serve(requests: Connection, answers: Connection) -> None:
    os.dup2(requests.fileno(), 0)
    os.dup2(answers.fileno(), 1)
    requests.close()
    answers.close()
    worker.main()
