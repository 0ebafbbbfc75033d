"""Apply a function to many items by several processes, with the results in the items' order.

The processes are spawned, so they inherit no locks or threads. Each has a pipe of its own: when the parent dies for any
reason, they read the end of their pipe and exit; when one of them dies, the parent reads the end of that pipe and raises.
"""

import collections
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from relm.errors import RelmError
from relm.recipes.declaration import load_extensions

Item = TypeVar("Item")
Result = TypeVar("Result")

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
        while ready and team.idle:
            team.start(*ready.popleft())
        results.update(team.finished(block=exhausted or taken - given >= window))
        while given in results:
            yield results.pop(given)
            given += 1
    if fault:
        raise fault


class _Team:
    """The worker processes, each busy with one item or idle."""

    def __init__(self, function: Callable[[Any], Any], task: str) -> None:
        self.function = function
        self.task = task
        self.processes: dict[Connection, BaseProcess] = {}
        self.busy: dict[Connection, int] = {}
        self.idle: list[Connection] = []

    def hire(self, workers: int) -> None:
        """Start the processes."""
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, self.function), daemon=True)
                process.start()
                there.close()  # so that the worker's death ends the pipe
                self.processes[here] = process
                self.idle.append(here)
        except OSError as error:
            hired = len(self.processes)
            raise RelmError(
                f"{self.task}: only {hired} of {workers} worker processes could be started ({error.strerror}); use fewer"
            ) from None

    def start(self, number: int, item: Any) -> None:
        """Give an item to an idle worker."""
        connection = self.idle.pop()
        try:
            connection.send(item)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(connection) from None
        self.busy[connection] = number

    def finished(self, block: bool) -> dict[int, Any]:
        """Return the results that have arrived, by item number; with ``block`` at least one, if any worker is busy."""
        results = {}
        for connection in wait(list(self.busy), timeout=None if block else 0) if self.busy else ():
            assert isinstance(connection, Connection)
            try:
                result, error = connection.recv()
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
            process.terminate()
        for process in self.processes.values():
            process.join()


def _work(connection: Connection, function: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    load_extensions()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            item = connection.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = (function(item), None)
            except Exception as error:
                answer = (None, error)
            connection.send(answer)
