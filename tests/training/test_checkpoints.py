import json
from pathlib import Path

import pytest
import torch

from relm.errors import RelmError
from relm.training.checkpoints import load_checkpoint, save_checkpoint

IDENTITY = {"fingerprint": "aa", "phase": "main", "manifest_sha256": "bb", "start_sha256": "cc"}


def save(folder: Path, step: int, keep: int = 2) -> Path:
    state = {**IDENTITY, "step": step, "loss": 1.5}
    return save_checkpoint(folder, state, {"w": torch.full((2,), step)}, {"w.exp_avg": torch.zeros(2)}, keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, 500)
    checkpoint = load_checkpoint(tmp_path, IDENTITY)
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state["loss"]) == (500, 1.5)
    assert checkpoint.model["w"].tolist() == [500, 500]
    assert checkpoint.optimizer["w.exp_avg"].tolist() == [0, 0]


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "checkpoints", IDENTITY) is None


def test_the_newest_stay(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-00000010", "step-00000015"]


def test_a_damaged_one_of_a_later_step_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    for step in (5, 10, 99):
        save(tmp_path, step, keep=3)
    (tmp_path / "step-00000099" / "model.safetensors").write_bytes(b"")
    save(tmp_path, 15)
    assert names(tmp_path) == ["step-00000010", "step-00000015"]


def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    (save(tmp_path, 5) / "model.safetensors").write_bytes(b"")
    assert load_checkpoint(tmp_path, IDENTITY) is None
    save(tmp_path, 5)
    assert load_checkpoint(tmp_path, IDENTITY) is not None


def test_what_an_interrupted_save_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".step-00000004.partial").mkdir(parents=True)
    save(tmp_path, 5)
    assert names(tmp_path) == ["step-00000005"]


def test_a_missing_file_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 5)
    (save(tmp_path, 10) / "optimizer.safetensors").unlink()
    checkpoint = load_checkpoint(tmp_path, IDENTITY)
    assert checkpoint is not None
    assert checkpoint.step == 5
    assert "optimizer.safetensors: damaged: the file is missing" in caplog.text


def test_another_format_is_refused(tmp_path: Path) -> None:
    state = save(tmp_path, 5) / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "format": 2}))
    with pytest.raises(RelmError, match="has format 2, this version reads 1"):
        load_checkpoint(tmp_path, IDENTITY)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("fingerprint", "another run"),
        ("phase", "another phase"),
        ("manifest_sha256", "other data"),
        ("start_sha256", "other starting weights"),
    ],
)
def test_one_of_something_else_is_refused_by_name(tmp_path: Path, key: str, words: str) -> None:
    save(tmp_path, 5)
    with pytest.raises(
        RelmError, match=f"step-00000005: the checkpoint was made for {words}: its {key} is {IDENTITY[key]}, this run's is zz"
    ):
        load_checkpoint(tmp_path, {**IDENTITY, key: "zz"})


def test_a_failure_to_write_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relm.training import checkpoints

    save(tmp_path, 5)

    def full(tensors: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(RelmError, match=r"step-00000010: the checkpoint cannot be written: .*No space left"):
        save(tmp_path, 10)
    assert names(tmp_path) == ["step-00000005"]
