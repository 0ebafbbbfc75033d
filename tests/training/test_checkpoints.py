"""A checkpoint is complete or absent, and a changed one is not loaded."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from relm.errors import RelmError
from relm.recipes import run_folder
from relm.training import checkpoints, tensor_file
from relm.training.attested_hashes import state_sha256
from relm.training.checkpoint_state import read_state, write_state
from relm.training.checkpoints import load_checkpoint, save_checkpoint

IDENTITY = {"fingerprint": "aa", "phase": "main", "manifest_sha256": "bb", "start_sha256": "cc"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of all checkpoints."""
    return tmp_path / "run" / "checkpoints"


def save(folder: Path, step: int, keep: int = 2, listed: bool = True) -> Path:
    state = {**IDENTITY, "step": step, "loss": 1.5, "seconds": 2.0, "made_on": {"device": "abacus"}}
    tensors = {"w": torch.full((2,), step)}, {"w.exp_avg": torch.zeros(2), "w.exp_avg_sq": torch.ones(2)}
    return save_checkpoint(folder, state, *tensors, keep, listed=listed)


def listed(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder.parent / "checkpoints.jsonl").read_text().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_are_kept(folder: Path) -> None:
    for step in (5, 10, 15):
        save(folder, step)
    assert names(folder) == ["step-00000010", "step-00000015"]


def test_one_that_an_interruption_caused_replaces_none_that_the_recipe_requests(folder: Path) -> None:
    for step, requested in ((500, True), (1000, True), (1100, False), (1200, False)):
        save(folder, step, listed=requested)
    assert names(folder) == ["step-00000500", "step-00001000", "step-00001200"]
    save(folder, 1500)
    assert names(folder) == ["step-00001000", "step-00001500"]
    assert listed(folder) == [500, 1000, 1500]


def test_a_damaged_one_of_a_later_step_does_not_replace_a_good_one(folder: Path) -> None:
    for step in (5, 10, 99):
        save(folder, step, keep=3)
    (folder / "step-00000099" / "model.safetensors").write_bytes(b"")
    save(folder, 15)
    assert names(folder) == ["step-00000010", "step-00000015"]


def test_a_damaged_one_of_the_same_step_is_replaced(folder: Path) -> None:
    (save(folder, 5) / "model.safetensors").write_bytes(b"")
    assert load_checkpoint(folder, IDENTITY) is None
    save(folder, 5)
    assert load_checkpoint(folder, IDENTITY) is not None


def test_the_files_of_an_interrupted_save_are_deleted(folder: Path) -> None:
    (folder / ".step-00000004.partial").mkdir(parents=True)
    save(folder, 5)
    assert names(folder) == ["step-00000005"]


def test_another_format_is_refused(folder: Path) -> None:
    saved = save(folder, 5)
    write_state(saved, {**read_state(saved), "format": 2})
    with pytest.raises(RelmError, match="has format 2, this version reads 1"):
        load_checkpoint(folder, IDENTITY)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("fingerprint", "another run"),
        ("phase", "another phase"),
        ("manifest_sha256", "other data"),
        ("start_sha256", "other starting weights"),
    ],
)
def test_one_of_another_run_is_refused_by_key(folder: Path, key: str, message: str) -> None:
    save(folder, 5)
    with pytest.raises(
        RelmError, match=f"step-00000005: the checkpoint belongs to {message}: its {key} is {IDENTITY[key]}, this run's is zz"
    ):
        load_checkpoint(folder, {**IDENTITY, key: "zz"})


def test_each_one_ever_written_has_a_line_with_the_hashes_of_its_files(folder: Path) -> None:
    for step in (5, 10, 15):
        saved = save(folder, step)
    assert listed(folder) == [5, 10, 15]
    line = json.loads((folder.parent / "checkpoints.jsonl").read_text().splitlines()[-1])
    files = {name: hashlib.sha256((saved / name).read_bytes()).hexdigest() for name in run_folder.CHECKPOINT_FILES}
    state = read_state(saved)
    assert line == {"step": 15, "sha256": files, "state_sha256": state_sha256(state), "made_on": {"device": "abacus"}}
    assert state["sha256"] == files


def test_the_list_attests_each_line_of_the_log_once_and_no_times(folder: Path) -> None:
    log = folder.parent / "train.jsonl"
    log.parent.mkdir()
    for step in (5, 10):
        with open(log, "a") as file:
            file.writelines(json.dumps({"step": step - back, "loss": 2.0, "seconds": 0.5}) + "\n" for back in (2, 0))
        save(folder, step)
    attested = [json.loads(line)["log"] for line in (folder.parent / "checkpoints.jsonl").read_text().splitlines()]
    assert [facts["lines"] for facts in attested] == [2, 2]
    assert attested[1]["sha256"] == hashlib.sha256(b'{"loss":2.0,"step":8}\n{"loss":2.0,"step":10}\n').hexdigest()


def test_the_hash_of_a_state_leaves_out_only_its_time(folder: Path) -> None:
    state = read_state(save(folder, 5))
    assert state_sha256({**state, "seconds": 7.0}) == state_sha256({**state, "seconds": 8.0}) == state_sha256(state)
    assert state_sha256({**state, "loss": 1.25}) != state_sha256(state)


def test_a_line_without_its_checkpoint_is_written_again_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder, 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save(folder, 10)
    assert listed(folder) == [5, 10]
    save(folder, 10)
    assert listed(folder) == [5, 10]


def test_a_failure_to_write_leaves_the_earlier_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder, 5)

    def full(name: str) -> None:
        if name == "checkpoint-tensor":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file, "kill_point", full)
    with pytest.raises(RelmError, match=r"step-00000010: cannot write the checkpoint: .*No space left.*same command"):
        save(folder, 10)
    assert names(folder) == ["step-00000005"]
    assert listed(folder) == [5]


def test_one_that_cannot_be_read_stops_the_run_since_an_older_one_would_replace_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, 5)
    newest = save(folder, 10)

    def failing(path: Path, sha256: str) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(checkpoints, "read_tensors", failing)
    with pytest.raises(RelmError, match=r"step-00000010: the checkpoint cannot be read: .*Input/output error"):
        load_checkpoint(folder, IDENTITY)
    assert newest.exists()


@pytest.mark.parametrize("text", ["no JSON\n", "[]\n", "[" * 100_000 + "\n", '{"step": "x"}\n'])
def test_a_broken_list_is_named(folder: Path, text: str) -> None:
    save(folder, 10)
    path = folder.with_name(run_folder.CHECKPOINTS)
    path.write_text(text + path.read_text())
    with pytest.raises(RelmError, match=r"checkpoints.jsonl: expected a line of JSON with a step"):
        save(folder, 20)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (
        lambda saved: (saved / "optimizer.safetensors").unlink(),
        "optimizer.safetensors: damaged: the file is missing",
    ),
    **{  # the time before a checkpoint becomes that of the run, which reports it
        f"{old} is {new}": (
            lambda saved, old=old, new=new: change_state(saved, old, new),
            "state.json: changed since it was made",
        )
        for old, new in (("2.0", "3.0"), ('"seconds"', '"sekonds"'), ("1.5", "1.25"))
    },
    "another step": (
        lambda saved: write_state(saved, {**read_state(saved), "step": 18}),
        "state.json: damaged: its step is 18",
    ),
}


def change_state(saved: Path, old: str, new: str) -> None:
    text = (saved / "state.json").read_text()
    assert old in text
    (saved / "state.json").write_text(text.replace(old, new))


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_the_one_before_a_damaged_one_is_loaded(
    damage: Callable[[Path], object], said: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 5)
    damage(save(folder, 10))
    checkpoint = load_checkpoint(folder, IDENTITY)
    assert checkpoint is not None
    assert checkpoint.step == 5
    assert f"step-00000010/{said}" in caplog.text
