"""Snakemake's main process and its jobs: stop signals reach them, and a lock whose owner is dead is cleared.

Left to itself, Snakemake answers TERM by waiting for its jobs, however long they train, and a TERM or INT sent to it alone
never reaches them. And after a SIGKILL its lock stays, so that the same command fails until somebody unlocks by hand.
"""

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

STATE = Path(".snakemake")


def run_steps_with_this_environment() -> None:
    """Let `python` in the rules be this interpreter, whether or not its environment was activated."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def is_main_process(workflow: Any) -> bool:
    """Whether this is the command a person gave, not a job that Snakemake started on this or another machine."""
    from snakemake_interface_executor_plugins.settings import ExecMode

    return bool(workflow.exec_mode == ExecMode.DEFAULT)


# --- locks -------------------------------------------------------------------------------------------------------------------


def _this_machine() -> list[str]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return [socket.gethostname(), boot.read_text().strip() if boot.exists() else ""]


def _start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when there is no such process. Guards against a number used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _is_proven_dead(owner: dict[str, Any]) -> bool:
    if owner["machine"] != _this_machine():
        # Another host, or this one before it was started anew: only the second is proof.
        return bool(owner["machine"][0] == socket.gethostname() and owner["machine"][1])
    return bool(_start_time(owner["pid"]) != owner["started"])


def clear_dead_locks(state: Path = STATE) -> None:
    """Remove Snakemake's lock when every process that may own it is proven dead, and note this process as a possible owner.

    An owner on another host cannot be proven dead: its lock stays, and Snakemake says how to remove it.
    """
    owners = state / "relm-owners"
    owners.mkdir(parents=True, exist_ok=True)
    records = {path: json.loads(path.read_text() or "null") for path in owners.glob("*.json")}
    dead = [path for path, owner in records.items() if owner is None or _is_proven_dead(owner)]
    if dead and len(dead) == len(records) and any((state / "locks").glob("*.lock")):
        shutil.rmtree(state / "locks")
        print("relm: the command that held the lock here is dead; going on where it stopped", file=sys.stderr)
    for path in dead:
        path.unlink(missing_ok=True)
    me = {"machine": _this_machine(), "pid": os.getpid(), "started": _start_time(os.getpid())}
    partial = owners / f".{os.getpid()}.partial"
    partial.write_text(json.dumps(me))
    partial.replace(owners / f"{socket.gethostname()}-{os.getpid()}.json")


# --- signals -----------------------------------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
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


def terminate_jobs() -> None:
    """Send TERM to every running step: the children of Snakemake's shells; the shells wait for them."""
    for child in _children(os.getpid()):
        for step in _children(child) if _is_shell(child) else [child]:
            try:
                os.kill(step, signal.SIGTERM)
            except ProcessLookupError:
                continue


def forward_signals_to_jobs() -> None:
    """Let TERM and INT, sent to Snakemake alone, stop the running steps too; a trainer saves a checkpoint first.

    Called when Snakemake has set its own handlers, which still run afterwards: it starts nothing new and ends.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        before: Callable[[int, FrameType | None], Any] | int | None = signal.getsignal(number)

        def handler(number: int, frame: FrameType | None, before: Any = before) -> None:
            terminate_jobs()
            if callable(before):
                before(number, frame)

        signal.signal(number, handler)
