"""A checkpoint is written while training continues, and nobody can tell from the bytes."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from relm.artifact import read_json
from relm.devices import host_copies
from relm.errors import RelmError
from relm.training import checkpoints, tensor_file, updates
from relm.training.attested_hashes import find_log_fault
from relm.training.kill_points import kill_point
from tiny_runs import TinyRun

SECONDS_TO_WAIT = 100


def files_of(run: TinyRun, step: int) -> dict[str, bytes]:
    """Return the tensors' files of a checkpoint."""
    folder = run.folder / "main" / "checkpoints" / f"step-{step:08d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of the thread that writes each file of each checkpoint."""
    names: list[str] = []

    def note(name: str) -> None:
        if name.endswith(".safetensors"):
            names.append(threading.current_thread().name)

    monkeypatch.setattr(checkpoints, "kill_point", note)
    return names


def write_slowly(monkeypatch: pytest.MonkeyPatch, until_step: int) -> list[bool]:
    """Make the thread wait within the first checkpoint until training has taken some steps; return whether it had."""
    passed, taken, waited = threading.Event(), 0, list[bool]()

    def count(name: str) -> None:
        nonlocal taken
        taken += name == "gradient"
        if taken == until_step:
            passed.set()

    def wait(name: str) -> None:
        if not waited:
            waited.append(passed.wait(SECONDS_TO_WAIT))

    monkeypatch.setattr(updates, "kill_point", count)
    monkeypatch.setattr(tensor_file, "kill_point", wait)
    return waited


def test_without_memory_for_a_copy_training_waits_and_the_bytes_are_the_same(
    tiny_run: TinyRun, uninterrupted: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = writers(monkeypatch)
    monkeypatch.setattr(host_copies, "SHARE", 0.0)
    tiny_run.train()
    assert threads == 2 * 10 * ["MainThread"]
    for step in (27, 30):
        assert files_of(tiny_run, step) == files_of(uninterrupted, step)
    assert tiny_run.lines() == uninterrupted.lines()
    assert tiny_run.listed() == uninterrupted.listed()


def test_all_checkpoints_but_the_last_are_written_by_a_thread(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = writers(monkeypatch)
    tiny_run.train()
    assert threads == [*2 * 9 * ["checkpoint_0"], "MainThread", "MainThread"]


def test_a_checkpoint_has_the_weights_and_the_log_of_its_step_whatever_training_does_meanwhile(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_run.changes = {"run": {"checkpoint_interval": 20, "log_interval": 1}}
    whole = TinyRun(tmp_path / "synchronous", tiny_run.examples, tiny_run.changes)
    with monkeypatch.context() as patch:
        patch.setattr(host_copies, "SHARE", 0.0)
        whole.train()
    waited = write_slowly(monkeypatch, until_step=25)
    tiny_run.train()
    assert waited == [True], "training waited for the checkpoint"
    assert files_of(tiny_run, 20) == files_of(whole, 20)
    assert files_of(tiny_run, 20) != files_of(tiny_run, 30)
    assert tiny_run.listed() == whole.listed(), "which attests the lines of the log up to each step"
    main = tiny_run.folder / "main"
    attested = read_json(main / "checkpoints" / "step-00000020" / "state.json")["logs"]["train.jsonl"]
    assert find_log_fault(main / "train.jsonl", attested) is None
    assert (main / "train.jsonl").read_bytes()[: attested["bytes"]].count(b"\n") == 20


@dataclass
class KilledWhileWriting(TinyRun):
    """A run that is killed in its ninth step, while the thread is between the two files of the second checkpoint."""

    def train(self) -> str:
        """Train in this process."""
        files = []

        def hold(name: str) -> None:
            files.append(name)
            if files.count("checkpoint-model.safetensors") == 2:
                time.sleep(SECONDS_TO_WAIT)
            kill_point(name)

        checkpoints.kill_point = hold  # type: ignore[attr-defined]
        return super().train()


def test_a_run_killed_while_the_thread_writes_ends_with_the_same_bytes(tiny_run: TinyRun, uninterrupted: TinyRun) -> None:
    started = time.monotonic()
    code, message = KilledWhileWriting(tiny_run.folder, tiny_run.examples).attempt("gradient:9")
    assert code == -signal.SIGKILL, message
    assert time.monotonic() - started < SECONDS_TO_WAIT, "training waited for the checkpoint"
    assert tiny_run.checkpoints == [".step-00000006.partial", "step-00000003"]
    assert [line["step"] for line in tiny_run.lines()] == [1, 2, 4, 6, 8]
    tiny_run.train()
    assert files_of(tiny_run, 30) == files_of(uninterrupted, 30)
    assert tiny_run.lines() == uninterrupted.lines()
    assert tiny_run.listed() == uninterrupted.listed()
    assert tiny_run.sha256() == uninterrupted.sha256()


def fail_to_write(monkeypatch: pytest.MonkeyPatch, number: int, first: Callable[[], object] = lambda: None) -> None:
    """Let each write of a tensor by the thread fail with an error of the system."""

    def fail(name: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            first()
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tensor_file, "kill_point", fail)


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only file system")])
def test_an_error_of_the_thread_ends_training_in_its_words_before_the_next_checkpoint(
    number: int, words: str, tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_write(monkeypatch, number)
    monkeypatch.setattr(updates, "kill_point", lambda name: time.sleep(0.01))
    tiny_run.changes = {"run": {"checkpoint_interval": 15, "log_interval": 1}}
    with pytest.raises(RelmError, match=rf"step-00000015: cannot write the checkpoint: .*{words}.* the same command again"):
        tiny_run.train()
    assert 15 <= tiny_run.lines()[-1]["step"] < 30
    assert tiny_run.checkpoints == []


def test_the_error_of_a_checkpoint_is_logged_where_another_one_ends_training(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised, steps = threading.Event(), []

    def raise_in_the_fourth_step(name: str) -> None:
        steps.append(name)
        if len(steps) == 4:
            raised.set()
            raise InterruptedError

    fail_to_write(monkeypatch, errno.ENOSPC, first=lambda: raised.wait(SECONDS_TO_WAIT))
    monkeypatch.setattr(updates, "kill_point", raise_in_the_fourth_step)
    with pytest.raises(InterruptedError):
        tiny_run.train()
    assert "step-00000003: cannot write the checkpoint" in caplog.text
