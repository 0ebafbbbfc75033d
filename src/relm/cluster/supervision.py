"""Supervise Snakemake's main process and its jobs: forward stop signals, and clear a lock whose owner is dead.

Without this, Snakemake answers TERM by waiting for its jobs, however long they train, and a TERM or INT sent to it alone
never reaches them. And after a SIGKILL its lock stays, so that the same command fails until somebody unlocks by hand.
"""

import fcntl
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from relm.artifact import atomic_file

STATE = Path(".snakemake")


def run_steps_with_this_environment() -> None:
    """Let `python` in the rules be this interpreter, whether or not its environment was activated."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def is_main_process(workflow: Any) -> bool:
    """Return whether this is the user's own command, not a job that Snakemake started on this or another machine."""
    from snakemake_interface_executor_plugins.settings import ExecMode

    return bool(workflow.exec_mode == ExecMode.DEFAULT)


# --- locks -------------------------------------------------------------------------------------------------------------------


def _identify_machine() -> dict[str, str]:
    """Return the scope of a process number: the host, its boot, and the PID namespace."""
    machine, boot = Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")
    return {
        "host": socket.gethostname(),
        "machine": machine.read_text().strip() if machine.exists() else "",
        "boot": boot.read_text().strip() if boot.exists() else "",
        "numbers": os.readlink("/proc/self/ns/pid") if Path("/proc/self/ns/pid").exists() else "",
    }


def _read_start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks, None without such a process; guards against a reused number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _is_proven_dead(owner: dict[str, Any]) -> bool:
    here, there = _identify_machine(), owner["machine"]
    if there == here:
        return bool(_read_start_time(owner["pid"]) != owner["started"])
    # The same machine after a reboot; nothing is known about any other host or container.
    same = here["machine"] and all(there.get(key) == here[key] for key in ("host", "machine"))
    return bool(same and there.get("boot") and there["boot"] != here["boot"])


def clear_dead_locks(state: Path = STATE) -> None:
    """Remove Snakemake's lock when every process that may own it is proven dead, and note this process as a possible owner.

    An owner on another host cannot be proven dead: its lock stays, and Snakemake reports how to remove it.
    """
    owners = state / "relm-owners"
    owners.mkdir(parents=True, exist_ok=True)
    with open(owners / "guard", "w") as guard:  # commands that start together check one after the other
        fcntl.flock(guard, fcntl.LOCK_EX)
        records = {path: _read_owner(path) for path in owners.glob("*.json")}
        dead = [path for path, owner in records.items() if _is_proven_dead(owner)]
        locks = list((state / "locks").glob("*.lock"))
        if dead and len(dead) == len(records) and locks:
            for path in locks:  # Snakemake has made the folder for its own lock already
                path.unlink()
            print("relm: the command that held the lock here is dead; resuming where it stopped", file=sys.stderr)
        for path in dead:
            path.unlink()
        me = {"machine": _identify_machine(), "pid": os.getpid(), "started": _read_start_time(os.getpid())}
        with atomic_file(owners / f"{socket.gethostname()}-{os.getpid()}.json", "w") as file:
            json.dump(me, file)


def is_locked(folder: Path, state: Path = STATE) -> bool:
    """Return True if Snakemake has locked files in a folder, and the process that may hold the lock is not proven dead."""
    locked = list_locked(state, "output")
    return any(Path(path).absolute().is_relative_to(folder.absolute()) for path in locked)


def list_locked(state: Path = STATE, kind: str = "*") -> list[str]:
    """Return the files that Snakemake has locked (`input`, `output` or `*`); none if every possible owner is proven dead."""
    owners = [_read_owner(path) for path in (state / "relm-owners").glob("*.json")]
    if owners and all(_is_proven_dead(owner) for owner in owners):
        return []
    return [line for path in (state / "locks").glob(f"*.{kind}.lock") for line in path.read_text().splitlines()]


def _read_owner(path: Path) -> dict[str, Any]:
    """Return the facts of a possible owner; an unreadable record gives none, so that it counts as alive."""
    try:
        owner = json.loads(path.read_text())
        return {"machine": dict(owner["machine"]), "pid": int(owner["pid"]), "started": owner["started"]}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {"machine": {}, "pid": 0, "started": None}


# --- signals -----------------------------------------------------------------------------------------------------------------


class Interrupts:
    """The requests to stop that this process received."""

    count = 0
    """The number of Ctrl-C that it received."""
    sender = ""
    """Who had the running steps stopped: Ctrl-C or SIGTERM; empty: nobody."""


INTERRUPTED = 128 + signal.SIGINT
"""The exit status of a command that Ctrl-C ended."""


def _list_children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return found


def _is_shell(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in {"bash", "sh", "dash"}
    except OSError:
        return False


def signal_jobs(number: signal.Signals) -> None:
    """Send a signal to every running step: the children of Snakemake's shells; a shell waits for them."""
    for child in _list_children(os.getpid()):
        for step in (_list_children(child) if _is_shell(child) else []) or [child]:
            try:
                os.kill(step, number)
            except ProcessLookupError:
                continue


def handle_interrupts() -> None:
    """Stop quietly at Ctrl-C, from now on: ask the running steps to stop, and end the main process with 130.

    A second Ctrl-C changes nothing: a trainer still saves its checkpoint. A third one kills the steps; files that are written
    whole or not at all, such as the checkpoint before it, stay.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        Interrupts.count += 1
        Interrupts.sender = "Ctrl-C"
        if Interrupts.count == 1:
            signal_jobs(signal.SIGTERM)
            raise SystemExit(INTERRUPTED)  # Snakemake's scheduler waits for its jobs, as after KeyboardInterrupt
        if Interrupts.count > 2:
            signal_jobs(signal.SIGKILL)

    signal.signal(signal.SIGINT, handler)


def exit_if_interrupted() -> None:
    """End with the exit status of Ctrl-C if there was one; Snakemake would end with that of an error."""
    if Interrupts.count:
        raise SystemExit(INTERRUPTED)


def forward_termination_to_jobs() -> None:
    """Forward TERM, sent to Snakemake alone, to the running steps; a trainer saves a checkpoint first.

    Call it after Snakemake has set its own handler, which still runs afterwards: it starts nothing new and ends.
    """
    before: Callable[[int, FrameType | None], Any] | int | None = signal.getsignal(signal.SIGTERM)
    received = queue.SimpleQueue[tuple[int, FrameType | None]]()  # its put is reentrant

    def call_before() -> None:
        while True:
            number, frame = received.get()
            if callable(before):
                before(number, frame)

    def handler(number: int, frame: FrameType | None) -> None:
        Interrupts.sender = Interrupts.sender or "SIGTERM"
        signal_jobs(signal.SIGTERM)
        received.put((number, frame))

    # Snakemake's handler takes the scheduler's lock. Called here while the scheduler holds it, it would wait for itself.
    threading.Thread(target=call_before, name="termination", daemon=True).start()
    signal.signal(signal.SIGTERM, handler)
