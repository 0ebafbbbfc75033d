"""Run a step in several processes on this machine, its ranks, and end with one exit status for all.

torchrun always ends with 1 if a process fails (torch 2.13), so a scheduler could not distinguish a run that was preempted and
saved from one that failed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from relm.devices.ranks import PROCESSES
from relm.errors import RelmError
from relm.limits import usable_cores
from relm.training.interruption import STOP_WITH_PARENT, Preempted

# On a machine with fewer cores. A rank takes some hundred megabytes, so thousands would exhaust the memory.
MOST_RANKS = 64
_SECONDS_BETWEEN_LOOKS = 0.05
# For a rank to find the connection to a dead one closed, and to end with its own message.
SECONDS_TO_NOTICE = 5.0
# After TERM, for a rank in a wait that no signal interrupts, such as a sum on a GPU.
SECONDS_TO_END = 60.0
# After a signal to stop, until the checkpoint is saved.
SECONDS_TO_SAVE = 1800.0


class RanksEnd(NamedTuple):
    """The end of all ranks."""

    status: int
    """The status of the first rank that failed; 75 if all were stopped and saved; otherwise 0."""
    message: str | None
    """The reason, if no rank can have printed it."""


def split_processes(words: Sequence[str]) -> tuple[int, list[str]] | None:
    """Return the count of `--processes` and the words after it; None if a command does not begin with it.

    >>> split_processes(["--processes", "2", "pretrain", "NAME"])
    (2, ['pretrain', 'NAME'])
    """
    first, equals, value = words[0].partition("=") if words else ("", "", "")
    if first != PROCESSES:
        return None
    count, *step = [value, *words[1:]] if equals else [*words[1:], ""]
    if not (count.isascii() and count.isdigit() and int(count) > 0):
        raise RelmError(f"{PROCESSES}: expected a count of processes of 1 or more, found {count!r}")
    if int(count) > (most := max(MOST_RANKS, usable_cores())):
        raise RelmError(f"{PROCESSES}: found {int(count):,}; expected at most {most} on this machine")
    return int(count), step if equals else step[:-1]


def run_ranks(count: int, words: Sequence[str]) -> RanksEnd:
    """Run `relm WORDS` in `count` processes that can find each other, until all have ended.

    Pass TERM, INT and HUP on. After a rank has failed, wait some seconds for the others, then send TERM and finally KILL.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    with _pass_signals_on(ranks) as received:
        port = _find_free_port()
        for rank in range(count):
            ranks.append(subprocess.Popen([sys.executable, "-m", "relm", *words], env=_environment(rank, count, port)))
        first = _wait_for_failure(ranks, received)
        if first is not None:
            _end(ranks)
    codes = [rank.wait() for rank in ranks]
    if first is None:
        return RanksEnd(Preempted.exit_code if Preempted.exit_code in codes else 0, None)
    if codes[first] > 0:
        return RanksEnd(codes[first], None)
    return RanksEnd(128 - codes[first], _describe_killed(first, count, -codes[first]))


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the environment of a rank, with the variables that torchrun sets."""
    numbers = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    own = {"MASTER_ADDR": "127.0.0.1", STOP_WITH_PARENT: "1", **{name: str(number) for name, number in numbers.items()}}
    return {"OMP_NUM_THREADS": "1", **os.environ, **own}  # otherwise each rank's numpy would take all cores


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _pass_signals_on(ranks: list[subprocess.Popen[bytes]]) -> Iterator[list[float]]:
    """Pass TERM, INT and HUP on to the ranks, and yield a growing list of the times at which they came."""
    received: list[float] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(time.monotonic())
        _signal(ranks, signal.Signals(number))

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(ranks: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for rank in ranks:
        rank.send_signal(number)  # does nothing once it has ended


def _wait_for_failure(ranks: Sequence[subprocess.Popen[bytes]], received: Sequence[float]) -> int | None:
    """Return the first rank that failed, preferring one that a signal ended; None once all have ended without failing."""
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [rank for rank, code in enumerate(codes) if code not in (None, 0, Preempted.exit_code)]
        if failed:
            return min(failed, key=lambda rank: (codes[rank] or 0) > 0)
        if None not in codes:
            return None
        if received and time.monotonic() > received[0] + SECONDS_TO_SAVE:
            _signal(ranks, signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for the ranks to end; send TERM, then KILL, to those that do not."""
    for number, seconds in ((signal.SIGTERM, SECONDS_TO_NOTICE), (signal.SIGKILL, SECONDS_TO_END)):
        end = time.monotonic() + seconds
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        _signal(ranks, number)


def _describe_killed(rank: int, count: int, number: int) -> str:
    name = signal.Signals(number).name
    memory = " (did memory run out?)" if number == signal.SIGKILL else ""
    return (
        f"rank {rank} of {count} was ended by {name}{memory}, so the others were stopped. Checkpoints are intact; the same "
        "command resumes the run"
    )
