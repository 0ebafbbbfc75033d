"""A lock is cleared only when its owner is proven dead."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relm.cluster import supervision


def locked_state(folder: Path, *owners: dict[str, object]) -> Path:
    (folder / "locks").mkdir()
    (folder / "locks" / "0.output.lock").write_text("results/tiny\n")
    (folder / "relm-owners").mkdir()
    for number, owner in enumerate(owners):
        (folder / "relm-owners" / f"{number}.json").write_text(json.dumps(owner))
    return folder / "locks" / "0.output.lock"


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def owner(kind: str, machine: dict[str, str] | None = None) -> dict[str, object]:
    """Return the record of a dead process, of this living one, or of an earlier one that had this one's number."""
    pid = dead_process() if kind == "dead" else os.getpid()
    started = supervision._read_start_time(pid) if kind == "living" else "1"
    return {"machine": {**supervision._identify_machine(), **(machine or {})}, "pid": pid, "started": started}


# Whose lock it is -> kinds of owners with changes of their machine, and whether the lock is cleared.
LOCKS: dict[str, tuple[list[tuple[str, dict[str, str]]], bool]] = {
    "dead": ([("dead", {})], True),
    "its process number is used again": ([("earlier", {})], True),
    "before this machine started anew": ([("earlier", {"boot": "another-boot"})], True),
    "living": ([("living", {})], False),
    "living and dead": ([("living", {}), ("dead", {})], False),
    "on another host": ([("dead", {"host": "elsewhere", "boot": "0"})], False),
    "in another container": ([("dead", {"numbers": "pid:[1]"})], False),
    "not known": ([], False),
}


@pytest.mark.parametrize(("owners", "is_cleared"), LOCKS.values(), ids=LOCKS)
def test_a_lock_is_cleared_only_if_its_owner_is_proven_dead(
    owners: list[tuple[str, dict[str, str]]], is_cleared: bool, tmp_path: Path
) -> None:
    """Snakemake makes the folder of locks before, and writes its own lock into it."""
    lock = locked_state(tmp_path, *(owner(*each) for each in owners))
    supervision.clear_dead_locks(tmp_path)
    assert lock.exists() != is_cleared
    assert lock.parent.is_dir()
    records = [json.loads(path.read_text())["pid"] for path in (tmp_path / "relm-owners").glob("*.json")]
    assert not is_cleared or records == [os.getpid()]


def test_files_are_locked_while_their_owner_is_not_proven_dead(tmp_path: Path) -> None:
    for number, (owners, expected) in enumerate({(0,): True, (1,): False, (0, 1): True, (): True}.items()):
        state = tmp_path / str(number)
        state.mkdir()
        locked_state(state, *[owner(("living", "dead")[index]) for index in owners])
        assert supervision.is_locked(Path("results"), state) is expected
        assert not supervision.is_locked(Path("work"), state)


def test_an_unreadable_record_keeps_the_lock(tmp_path: Path) -> None:
    lock = locked_state(tmp_path, owner("dead"))
    (tmp_path / "relm-owners" / "half.json").write_text('{"pid": ')
    supervision.clear_dead_locks(tmp_path)
    assert lock.exists()


def test_termination_is_handled_while_the_scheduler_holds_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, handled = threading.Lock(), threading.Event()

    def exit_gracefully(*_: object) -> None:
        if lock.acquire(timeout=2):
            lock.release()
            handled.set()

    monkeypatch.setattr(supervision, "signal_jobs", lambda number: None)
    before = signal.signal(signal.SIGTERM, exit_gracefully)
    try:
        supervision.forward_termination_to_jobs()
        with lock:
            signal.raise_signal(signal.SIGTERM)
            assert not handled.is_set()
        assert handled.wait(10)
    finally:
        signal.signal(signal.SIGTERM, before)
