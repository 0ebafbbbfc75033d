"""Run Snakemake in processes forked from one that has imported it, which saves the two to three seconds of its imports.

A forked process differs from the command `snakemake` in this: it is a child of the server, not of the test, and the processes
of one server share the seed of Python's hashes. The first test of a worker that needs a server starts it, as

    python -P snakemake_server.py SOCKET

where SOCKET is the descriptor of one end of a socket pair. The server ends when the other end is closed.
"""

import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "OMP_", "TMPDIR", "TZ", "RELM_EXTENSIONS")
"""Beginnings of the variables that Python, or a module that the server imports, reads once."""
SCRIPT = Path(sys.executable).parent / "snakemake"
IMPORTED_LATER = ("smart_open", "relm.cluster.supervision", "relm.graph", "relm.terminal.handler")
"""Modules that Snakemake imports when it reads a Snakefile, and those that ours imports."""
LONGEST_REQUEST = 1 << 20


def snapshot_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a running server no longer reads."""
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


class SnakemakeServer:
    """The side of the tests: a running server, which handles one command after another."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.variables = snapshot_variables(environment)
        self._free = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_REQUEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                cwd="/",
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def is_ready_for(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return False if only a new process can do what the command does."""
        found = shutil.which(command[0], path=environment.get("PATH"))
        return found == str(SCRIPT) and snapshot_variables(environment) == self.variables and self._process.poll() is None

    def run(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its two streams together in `stdout`.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was killed.
        """
        request = json.dumps({"arguments": command[1:], "folder": str(cwd), "environment": dict(env)}).encode()
        output, write_end = os.pipe()
        with self._free, open(output, "rb", buffering=0):
            try:
                socket.send_fds(self._socket, [request], [write_end])
            finally:
                os.close(write_end)
            pid = self._receive_number()
            try:
                text = read_to_end(output, time.monotonic() + timeout)
            except BaseException as error:
                os.kill(pid, signal.SIGKILL)
                self._receive_number()
                raise (
                    subprocess.TimeoutExpired(list(command), timeout) if isinstance(error, TimeoutError) else error
                ) from None
            status = self._receive_number()
        return subprocess.CompletedProcess(list(command), os.waitstatus_to_exitcode(status), text.decode(errors="replace"))

    def _receive_number(self) -> int:
        if not (answer := self._socket.recv(64)):
            raise RuntimeError("the server of tests/snakemake_server.py has ended; its error is among what the tests printed")
        return int(answer)


@functools.cache
def start_server() -> SnakemakeServer:
    """Return this process's server, started by the first call."""
    return SnakemakeServer({**os.environ, "OMP_NUM_THREADS": "1"})  # as the small projects have it


def read_to_end(descriptor: int, deadline: float) -> bytes:
    """Return what is written into a pipe until every process has closed it.

    Raises:
        TimeoutError: it is still open at the deadline.
    """
    parts = []
    while True:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        if not (part := os.read(descriptor, 1 << 16)):
            return b"".join(parts)
        parts.append(part)


# --- the side of the server ---------------------------------------------------------------------------------------------------


def become(request: bytes, stream: int) -> None:
    """Turn this forked process into one that was started as `snakemake` with a request's arguments, folder and environment."""
    asked = json.loads(request)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = [str(SCRIPT), *asked["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def serve(control: socket.socket) -> bool:
    """Handle requests until the tests close their end; return True in each forked process, False in the server itself."""
    while True:
        request, streams, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 1)
        if not request:
            return False
        pid = os.fork()
        if pid == 0:
            control.close()
            become(request, streams[0])
            return True
        os.close(streams[0])
        control.send(str(pid).encode())
        control.send(str(os.waitpid(pid, 0)[1]).encode())


def main() -> None:
    """Import Snakemake and what the Snakefile imports, then serve; each forked process ends as the command `snakemake` does."""
    sys.path.insert(0, str(SCRIPT.parent))  # as for the script itself
    import snakemake.cli

    snakemake.cli.get_argument_parser()  # imports the plugins
    for module in IMPORTED_LATER:
        importlib.import_module(module)
    if threading.active_count() > 1:
        sys.exit("snakemake_server: an import started a thread, which a forked process would lack")
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, whose end ends the server
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        sys.exit(snakemake.cli.main())


if __name__ == "__main__":
    main()
