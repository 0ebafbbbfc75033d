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


def owner(pid: int, started: str | None, machine: dict[str, str] | None = None) -> dict[str, object]:
    return {"machine": machine or supervision._identify_machine(), "pid": pid, "started": started}


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_lock_of_a_dead_owner_is_cleared(tmp_path: Path) -> None:
    lock = locked_state(tmp_path, owner(dead_process(), "1"))
    supervision.clear_dead_locks(tmp_path)
    assert not lock.exists()
    assert lock.parent.is_dir(), "Snakemake made the folder before, and writes its own lock into it"
    (mine,) = (tmp_path / "relm-owners").glob("*.json")
    assert json.loads(mine.read_text())["pid"] == os.getpid()


def test_a_process_number_used_again_is_no_sign_of_life(tmp_path: Path) -> None:
    lock = locked_state(tmp_path, owner(os.getpid(), "1"))
    supervision.clear_dead_locks(tmp_path)
    assert not lock.exists()


def test_files_are_locked_while_their_owner_is_not_proven_dead(tmp_path: Path) -> None:
    alive = owner(os.getpid(), supervision._read_start_time(os.getpid()))
    for number, (owners, expected) in enumerate({(0,): True, (1,): False, (0, 1): True, (): True}.items()):
        state = tmp_path / str(number)
        state.mkdir()
        locked_state(state, *[(alive, owner(dead_process(), "1"))[index] for index in owners])
        assert supervision.is_locked(Path("results"), state) is expected
        assert not supervision.is_locked(Path("work"), state)


@pytest.mark.parametrize("companions", [0, 1])
def test_the_lock_of_a_living_owner_stays(tmp_path: Path, companions: int) -> None:
    alive = owner(os.getpid(), supervision._read_start_time(os.getpid()))
    lock = locked_state(tmp_path, alive, *[owner(dead_process(), "1")] * companions)
    supervision.clear_dead_locks(tmp_path)
    assert lock.exists()


def test_the_lock_of_an_owner_on_another_host_stays(tmp_path: Path) -> None:
    lock = locked_state(
        tmp_path, owner(dead_process(), "1", {**supervision._identify_machine(), "host": "elsewhere", "boot": "0"})
    )
    supervision.clear_dead_locks(tmp_path)
    assert lock.exists()


def test_an_owner_before_this_machine_started_anew_is_dead(tmp_path: Path) -> None:
    lock = locked_state(tmp_path, owner(os.getpid(), "1", {**supervision._identify_machine(), "boot": "another-boot"}))
    supervision.clear_dead_locks(tmp_path)
    assert not lock.exists()


def test_the_lock_of_an_owner_in_another_container_stays(tmp_path: Path) -> None:
    machine = {**supervision._identify_machine(), "numbers": "pid:[1]"}
    lock = locked_state(tmp_path, owner(dead_process(), "1", machine))
    supervision.clear_dead_locks(tmp_path)
    assert lock.exists()


def test_an_unreadable_record_keeps_the_lock(tmp_path: Path) -> None:
    lock = locked_state(tmp_path, owner(dead_process(), "1"))
    (tmp_path / "relm-owners" / "half.json").write_text('{"pid": ')
    supervision.clear_dead_locks(tmp_path)
    assert lock.exists()


def test_a_lock_without_a_known_owner_stays(tmp_path: Path) -> None:
    lock = locked_state(tmp_path)
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
