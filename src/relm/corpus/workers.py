"""Apply a function to many items in several processes, with the results in the items' order.

The processes are spawned, so they inherit no locks or threads. Each has two pipes, for items and for results: if the parent
dies for any reason, they read the end of their pipe and exit; if one of them dies, the parent reads the end of that pipe and
raises. Arrays are never copied into or out of the pickled message. A small item waits in the pipe of a busy worker, which can
then go on at once, before the parent has taken its result.
"""

import collections
import contextlib
import fcntl
import gc
import itertools
import multiprocessing
import os
import pickle
import selectors
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from relm.errors import RelmError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Bytes of a pipe for results, if the system permits, so that a worker need not wait until the parent reads its result. Linux
# gives one user 64 MiB of large pipes, then small ones.
PIPE = 2**19
# Bytes of the largest message that may wait in the pipe of a busy worker. Any pipe holds two of them, so the parent never
# waits for a worker that waits until the parent reads its result.
SMALL = 2**12
# Items read ahead per worker: one is processed, one waits, the third bridges an item that takes long.
READ_AHEAD = 3


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, task: str
) -> Generator[Result, None, None]:
    """Yield the results of ``map(function, items)``, computed by several processes; one worker means this process.

    As with ``map``, an error of ``items`` is raised after the results of all items before it. At most `READ_AHEAD` items per
    worker are in memory. The function, its arguments and its results travel between processes, so they must be importable. If a
    worker dies, RelmError names the task.
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
    ready: collections.deque[tuple[int, _Message]] = collections.deque()
    results: dict[int, Any] = {}
    taken = given = 0
    while not exhausted or given < taken:
        if not exhausted and taken - given < window:
            try:
                ready.append((taken, _Message(next(items))))
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


def _start_ready(team: "_Team", ready: collections.deque[tuple[int, "_Message"]]) -> None:
    while ready and team.start(*ready[0]):
        ready.popleft()


class _Team:
    """The worker processes, each idle, or busy with one item while another may wait in its pipe."""

    def __init__(self, function: Callable[[Any], Any], task: str) -> None:
        self.function = function
        self.task = task
        # Each worker by the end of the pipe that its results arrive in.
        self.processes: dict[Connection, BaseProcess] = {}
        self.items: dict[Connection, Connection] = {}
        self.given: dict[Connection, collections.deque[int]] = {}
        """Numbers of the items without an answer."""
        self.selector = selectors.DefaultSelector()

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
                self.given[results] = collections.deque()
                self.selector.register(results, selectors.EVENT_READ)
        except OSError as error:
            hired = len(self.processes)
            raise RelmError(
                f"{self.task}: started only {hired} of {workers} worker processes ({error.strerror}); use fewer"
            ) from None

    def start(self, number: int, item: "_Message") -> bool:
        """Give an item to a worker and return True; return False if all have enough to do."""
        connection, given = min(self.given.items(), key=lambda worker: len(worker[1]))
        if len(given) > item.is_small:
            return False
        try:
            item.send(self.items[connection])
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(connection) from None
        given.append(number)
        return True

    def finished(self, block: bool) -> dict[int, Any]:
        """Return the results that have arrived, by item number; with ``block``, wait for at least one if a worker is busy."""
        results: dict[int, Any] = {}
        if not any(self.given.values()):
            return results
        for key, _ in self.selector.select(timeout=None if block else 0):
            connection = key.fileobj
            assert isinstance(connection, Connection)
            try:
                result, error = _receive(connection)
            except (EOFError, ConnectionResetError):
                raise self._death(connection) from None
            if error is not None:
                raise error
            results[self.given[connection].popleft()] = result
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
        self.selector.close()
        for connection, process in self.processes.items():
            connection.close()
            self.items[connection].close()
            process.terminate()
        for process in self.processes.values():
            process.join()


@contextlib.contextmanager
def _no_command_to_import() -> Iterator[None]:
    """Hide this process's command from spawned processes: importing it would take half a second."""
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
        for number in itertools.count():
            item = _receive(items)
            answer: tuple[Any, Exception | None]
            try:
                answer = (function(item), None)
            except Exception as error:
                answer = (None, error)
            _Message(answer).send(results)
            if number == 0:  # what the first item has loaded stays, and is not searched at each collection
                gc.freeze()


class _Message:
    """A value to send: the sizes of its arrays, its pickled form without them, and their bytes."""

    def __init__(self, value: Any) -> None:
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        self.arrays = [array.raw() for array in arrays]
        self.head = pickle.dumps(([array.nbytes for array in self.arrays], pickled))

    @property
    def is_small(self) -> bool:
        """Return whether it has at most `SMALL` bytes, and no arrays."""
        return not self.arrays and len(self.head) <= SMALL

    def send(self, connection: Connection) -> None:
        """Send it, and wait until the pipe has taken all of it."""
        connection.send_bytes(self.head)
        for array in self.arrays:
            while array.nbytes:
                array = array[os.write(connection.fileno(), array) :]


def _receive(connection: Connection) -> Any:
    """Return the value of a message."""
    sizes, pickled = pickle.loads(connection.recv_bytes())  # noqa: S301 - sent by our own process
    contents = [bytearray(size) for size in sizes]
    for content in contents:
        empty = memoryview(content)
        while empty.nbytes:
            count = os.readv(connection.fileno(), [empty])
            if not count:
                raise EOFError
            empty = empty[count:]
    return pickle.loads(pickled, buffers=contents)  # noqa: S301 - as above
