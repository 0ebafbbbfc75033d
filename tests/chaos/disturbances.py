"""Faults that strike a command while it runs, or its files between two attempts: one function each, drawn by name.

Each is a generator function that prepares nothing, does harm, yields while the harm lasts, and takes it back.
A generator that ends before its first yield found nothing to harm, so nothing is counted.
"""

import contextlib
import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from disturbed_project import DisturbedProject

Disturbance = Callable[[DisturbedProject, random.Random], Iterator[None]]
RUNNING: dict[str, Disturbance] = {}
"""Faults of a running command, by name."""
BETWEEN: dict[str, Disturbance] = {}
"""Faults of files while no command runs; an attempt meets them, and then they are put back."""


def while_running(disturbance: Disturbance) -> Disturbance:
    """Register a disturbance of a running command under its function's name."""
    RUNNING[disturbance.__name__] = disturbance
    return disturbance


def between_attempts(disturbance: Disturbance) -> Disturbance:
    """Register a disturbance of a project whose command does not run."""
    BETWEEN[disturbance.__name__] = disturbance
    return disturbance


def _signal(processes: Sequence[psutil.Process], number: int, draw: random.Random) -> bool:
    """Send a signal to one of the processes; False if there is none."""
    for process in draw.sample(processes, len(processes)):
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            return True
    return False


# --- processes ---------------------------------------------------------------------------------------------------------------


@while_running
def kill_snakemake(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """Send SIGKILL only to Snakemake."""
    assert project.process is not None
    project.process.kill()
    yield


@while_running
def kill_everything(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """SIGKILL to Snakemake and all that it started."""
    assert project.process is not None
    processes = project.descendants()
    project.process.kill()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    yield


@while_running
def kill_step(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """SIGKILL to one step."""
    if _signal(project.steps(), signal.SIGKILL, draw):
        yield


@while_running
def kill_worker(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """SIGKILL to one process that a step started."""
    if _signal(project.workers(), signal.SIGKILL, draw):
        yield


@while_running
def terminate(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """SIGTERM to Snakemake."""
    assert project.process is not None
    project.process.terminate()
    yield


@while_running
def interrupt(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """Ctrl-C: SIGINT to everything in the terminal."""
    assert project.process is not None
    os.killpg(project.process.pid, signal.SIGINT)
    yield


@while_running
def suspend(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """SIGSTOP to one step, and SIGCONT after a while."""
    steps = project.steps()
    if _signal(steps, signal.SIGSTOP, draw):
        yield
        for step in steps:
            with contextlib.suppress(psutil.Error):
                step.send_signal(signal.SIGCONT)


@while_running
def limit_memory(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """A step may have only a little more memory than it has now."""
    for step in project.steps():
        with contextlib.suppress(psutil.Error, OSError):
            limit = step.memory_info().vms + draw.choice((1 << 16, 1 << 20, 1 << 23))
            resource.prlimit(step.pid, resource.RLIMIT_AS, (limit, limit))
            yield
            return


@while_running
def another_command(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """The same command given a second time in the same folder."""
    project.second = project.launch(project.out.with_name("second.out"))
    yield


# --- the disk and the clock --------------------------------------------------------------------------------------------------


@while_running
def full_disk(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """The disk is full, but for a few bytes."""
    status = os.statvfs(project.folder)
    if (free := status.f_bavail * status.f_frsize) > 1 << 30:
        return  # no small disk: this user may mount none
    filler = project.folder / "filler"
    with open(filler, "wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(free - draw.randrange(1 << 16), 1))
    yield
    filler.unlink(missing_ok=True)  # it may strike twice


@while_running
def no_space(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """Some writes say that the disk is full."""
    yield from _failing_calls(project, writes_one_in=draw.choice((1, 5, 50)), error=errno.ENOSPC)


@while_running
def failing_writes(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """Some writes and flushes say that the device is broken."""
    yield from _failing_calls(project, writes_one_in=draw.choice((1, 5, 50)))


@while_running
def failing_reads(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """Some reads say that the device is broken."""
    yield from _failing_calls(project, reads_one_in=draw.choice((1, 5, 50)))


def _failing_calls(
    project: DisturbedProject, reads_one_in: int = 0, writes_one_in: int = 0, error: int = errno.EIO
) -> Iterator[None]:
    before = project.calls.failures
    project.calls.set(reads_one_in=reads_one_in, writes_one_in=writes_one_in, error=error)
    for _ in range(40):  # until a call has failed
        if project.calls.failures > before or not project.is_running():
            break
        time.sleep(0.1)
    if project.calls.failures > before:
        yield
    project.calls.set()


@while_running
def clock_jumps(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """The time of day jumps, forwards or backwards."""
    project.calls.set(clock_seconds=draw.choice((-86400 * 365, -3600, -2, 3600, 86400 * 365)))
    yield
    project.calls.set()


# --- the network -------------------------------------------------------------------------------------------------------------


def _bad_network(project: DisturbedProject, fault: str) -> Iterator[None]:
    before = project.server.faults
    project.server.fault = fault
    for _ in range(20):
        if project.server.faults > before or not project.is_running():
            break
        time.sleep(0.1)
    if project.server.faults > before:
        yield
    project.server.fault = ""


@while_running
def cut_network(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """Connections end in the middle of a file."""
    yield from _bad_network(project, "cut")


@while_running
def slow_network(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """A file comes a few bytes at a time."""
    yield from _bad_network(project, "slow")


@while_running
def unavailable_server(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """The server answers 503."""
    yield from _bad_network(project, "unavailable")


# --- edits that are put back -------------------------------------------------------------------------------------------------


@while_running
def edit_recipe(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """The recipe has another seed for a while."""
    recipe = project.folder / "recipes" / f"{project.recipe}.yaml"
    text = recipe.read_text()
    recipe.write_text(text + f"seed: {draw.randrange(1, 1000)}\n")
    yield
    recipe.write_text(text)


def _one_file(project: DisturbedProject, draw: random.Random) -> Path | None:
    files = [path for path in project.files() if path.stat().st_size]
    return draw.choice(files) if files else None


@between_attempts
def flip_byte(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """One byte of one file is another."""
    if path := _one_file(project, draw):
        content = path.read_bytes()
        place = draw.randrange(len(content))
        yield from _replaced(path, content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :])


@between_attempts
def truncate_file(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """One file has lost its end."""
    if path := _one_file(project, draw):
        content = path.read_bytes()
        yield from _replaced(path, content[: draw.randrange(len(content))])


@between_attempts
def delete_file(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """One file is gone, and stays so."""
    if path := _one_file(project, draw):
        path.unlink()
        yield


@between_attempts
def touch_files(project: DisturbedProject, draw: random.Random) -> Iterator[None]:
    """A third of all files have a new time."""
    if files := project.files():
        for path in draw.sample(files, (len(files) + 2) // 3):
            path.touch()
        yield


def _replaced(path: Path, content: bytes) -> Iterator[None]:
    """Give a file another content, and put its own back unless it was made again meanwhile."""
    status, before = path.stat(), path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    yield
    if path.exists() and path.read_bytes() == content:
        path.write_bytes(before)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
