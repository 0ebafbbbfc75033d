"""Apply a function to many items by several processes, with the results in the items' order.

The processes are spawned, so they inherit no locks or threads. Each has two pipes of its own, for items and for results: when
the parent dies for any reason, they read the end of their pipe and exit; when one of them dies, the parent reads the end of
that pipe and raises. Arrays are neither copied into the pickled message nor out of it.
"""

import collections
import contextlib
import fcntl
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from relm.errors import RelmError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Bytes of a pipe for results, if the system permits: a worker need not wait until the parent reads its result. Linux gives one
# user 64 MiB of large pipes, and small ones after that.
PIPE = 2**19
# Items read ahead per worker. One is being processed, one waits; the third covers for an item that takes long.
READ_AHEAD = 3


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, task: str
) -> Generator[Result, None, None]:
    """Yield the results of ``map(function, items)``, computed by several processes; one worker means this process.

    An error of ``items`` is raised after the results of all items before it, as ``map`` would. At most `READ_AHEAD` items a
    worker are in memory.

    Args:
        function: importable, as are its arguments and results: they are sent to the workers.
        task: a name of the work, for the message when a worker dies.

    Raises:
        RelmError: a worker died, by a signal or by itself.
    """
    if workers <= 1:
        yield from map(function, items)
        return
    team = _Team(function, task)
    try:
        team.hire(workers)
        yield from _collect_in_order(team, iter(items), READ_AHEAD * workers)
    finally:
        team.dismiss()


def _collect_in_order(team: "_Team", items: Iterator[Any], window: int) -> Iterator[Any]:
    fault: Exception | None = None
    exhausted = False
    ready: collections.deque[tuple[int, Any]] = collections.deque()
    results: dict[int, Any] = {}
    taken = given = 0
    while not exhausted or given < taken:
        if not exhausted and taken - given < window:
            try:
                ready.append((taken, next(items)))
                taken += 1
            except StopIteration:
                exhausted = True
            except Exception as error:
                fault, exhausted = error, True
        _start_ready(team, ready)
        results.update(team.finished(block=exhausted or taken - given >= window))
        _start_ready(team, ready)  # before the caller takes its time over the results
        while given in results:
            yield results.pop(given)
            given += 1
    if fault:
        raise fault


def _start_ready(team: "_Team", ready: collections.deque[tuple[int, Any]]) -> None:
    while ready and team.idle:
        team.start(*ready.popleft())


class _Team:
    """The worker processes, each busy with one item or idle."""

    def __init__(self, function: Callable[[Any], Any], task: str) -> None:
        self.function = function
        self.task = task
        # By the end of the pipe from which a worker's results are read.
        self.processes: dict[Connection, BaseProcess] = {}
        self.items: dict[Connection, Connection] = {}
        self.busy: dict[Connection, int] = {}
        self.idle: list[Connection] = []

    def hire(self, workers: int) -> None:
        """Start the processes."""
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(workers):
                taken, items = context.Pipe(duplex=False)
                results, given = context.Pipe(duplex=False)
                with contextlib.suppress(OSError):
                    fcntl.fcntl(given.fileno(), fcntl.F_SETPIPE_SZ, PIPE)
                process = context.Process(target=_work, args=(taken, given, self.function), daemon=True)
                with _no_command_to_import():
                    process.start()
                taken.close()
                given.close()  # so that the worker's death ends the pipe
                self.processes[results], self.items[results] = process, items
                self.idle.append(results)
        except OSError as error:
            hired = len(self.processes)
            raise RelmError(
                f"{self.task}: only {hired} of {workers} worker processes could be started ({error.strerror}); use fewer"
            ) from None

    def start(self, number: int, item: Any) -> None:
        """Give an item to an idle worker."""
        connection = self.idle.pop()
        try:
            _send(self.items[connection], item)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(connection) from None
        self.busy[connection] = number

    def finished(self, block: bool) -> dict[int, Any]:
        """Return the results that have arrived, by item number; with ``block`` at least one, if any worker is busy."""
        results = {}
        for connection in wait(list(self.busy), timeout=None if block else 0) if self.busy else ():
            assert isinstance(connection, Connection)
            try:
                result, error = _receive(connection)
            except (EOFError, ConnectionResetError):
                raise self._death(connection) from None
            if error is not None:
                raise error
            results[self.busy.pop(connection)] = result
            self.idle.append(connection)
        return results

    def _death(self, connection: Connection) -> RelmError:
        process = self.processes[connection]
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        hint = ", perhaps by the system because memory ran out: free some or use fewer workers" if code == -9 else ""
        return RelmError(f"{self.task}: worker process {process.pid} {how}{hint}; nothing was written, run it again")

    def dismiss(self) -> None:
        """Stop all workers, busy or not."""
        for connection, process in self.processes.items():
            connection.close()
            self.items[connection].close()
            process.terminate()
        for process in self.processes.values():
            process.join()


@contextlib.contextmanager
def _no_command_to_import() -> Iterator[None]:
    """Hide the command that this process runs from a process that is spawned: importing it would take half a second."""
    command = sys.modules["__main__"]
    name = getattr(getattr(command, "__spec__", None), "name", None) or Path(getattr(command, "__file__", None) or "").name
    if name not in ("relm.__main__", "relm"):  # a script may define the function that the workers call
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = command


def _work(items: Connection, results: Connection, function: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    if os.environ.get("RELM_EXTENSIONS"):
        from relm.recipes.declaration import load_extensions  # many imports

        load_extensions()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            item = _receive(items)
            answer: tuple[Any, Exception | None]
            try:
                answer = (function(item), None)
            except Exception as error:
                answer = (None, error)
            _send(results, answer)


def _send(connection: Connection, value: Any) -> None:
    """Send a value: the sizes of its arrays, its pickled form without them, and their bytes."""
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    contents = [array.raw() for array in arrays]
    connection.send_bytes(pickle.dumps(([content.nbytes for content in contents], pickled)))
    for content in contents:
        while content.nbytes:
            content = content[os.write(connection.fileno(), content) :]


def _receive(connection: Connection) -> Any:
    """Return what `_send` sent.

    Raises:
        EOFError: the other end was closed, perhaps in the middle of a value.
    """
    sizes, pickled = pickle.loads(connection.recv_bytes())  # noqa: S301 - of a process of ours
    contents = [bytearray(size) for size in sizes]
    for content in contents:
        empty = memoryview(content)
        while empty.nbytes:
            count = os.readv(connection.fileno(), [empty])
            if not count:
                raise EOFError
            empty = empty[count:]
    return pickle.loads(pickled, buffers=contents)  # noqa: S301 - as above
