"""Bad input is rejected before the first step, by name; and a full disk loses no checkpoint."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.run_folder import CHECKPOINT_FILES
from tiny_runs import TinyRun


@pytest.fixture
def own_data(tiny_run: TinyRun) -> TinyRun:
    """A run with a copy of the examples, to be damaged."""
    folder = tiny_run.folder.parent / "examples"
    shutil.copytree(tiny_run.examples, folder)
    tiny_run.examples = folder
    tiny_run.changes = {"pretrain": {"main": {"steps": 9}}, "run": {"log_interval": 1}}
    return tiny_run


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a missing shard": (remove, "shard.train.bin", r"shard\.train\.bin: no such file, although .*manifest\.json lists it"),
    "a cut shard": (cut, "shard.train.bin", r"shard\.train\.bin: has [0-9,]+ bytes, .*manifest\.json says [0-9,]+"),
    "a changed shard": (change_a_byte, "shard.train.bin", r"shard\.train\.bin: changed: sha256 is .*manifest\.json says"),
    "a changed index": (change_a_byte, "shard.train.idx", r"shard\.train\.idx: not the index that .*manifest\.json lists"),
    "a cut manifest": (cut, "manifest.json", r"manifest\.json: not valid JSON"),
    "a missing manifest": (remove, "manifest.json", r"manifest\.json: no such file"),
    "a missing tokenizer": (remove, "tokenizer.json", r"tokenizer\.json: no such file; pass the tokenizer of .*manifest"),
}


@pytest.mark.parametrize("resumes", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_changed_examples_are_refused_before_the_first_step(damage: str, resumes: bool, own_data: TinyRun) -> None:
    spoil, file, message = DAMAGES[damage]
    if resumes:
        code, _ = own_data.attempt("checkpoint-saved:2")
        assert code == -9
    log = own_data.folder / "main" / "train.jsonl"
    lines = log.read_bytes() if resumes else b""
    spoil(own_data.examples / file)
    with pytest.raises(RelmError, match=message):
        own_data.train()
    if resumes:
        assert log.read_bytes() == lines, "the earlier run's log was changed"
        assert own_data.checkpoints == ["step-00000003", "step-00000006"]
    else:
        assert not log.exists()


# The write that fails -> the size limit of a file, given a checkpoint.
FULL: dict[str, tuple[Callable[[Path], int], str]] = {
    "within the weights": (
        lambda saved: (saved / CHECKPOINT_FILES[0]).stat().st_size // 2,
        "step-00000009: cannot write the checkpoint",
    ),
    "within the optimizer": (
        lambda saved: (saved / CHECKPOINT_FILES[0]).stat().st_size + 1000,
        "step-00000009: cannot write the checkpoint",
    ),
    "within the log": (
        lambda saved: (saved.parents[1] / "train.jsonl").stat().st_size + 10,
        r"train\.jsonl: cannot be written",
    ),
}


@pytest.mark.parametrize("case", FULL)
def test_a_disk_that_is_full_while_saving_loses_nothing(case: str, uninterrupted: TinyRun, tiny_run: TinyRun) -> None:
    limit, message = FULL[case]
    assert tiny_run.attempt("checkpoint-saved:2")[0] == -9
    last = tiny_run.folder / "main" / "checkpoints" / "step-00000006"
    before = {path.name: path.read_bytes() for path in last.iterdir()}
    code, output = tiny_run.attempt(largest_file=limit(last))
    assert code == 1
    assert message.replace("\\", "") in output
    assert "File too large" in output
    assert "the same command" in output
    assert tiny_run.checkpoints == ["step-00000003", "step-00000006"], "a half-written checkpoint was left behind"
    assert {path.name: path.read_bytes() for path in last.iterdir()} == before
    tiny_run.train()
    assert tiny_run.lines() == uninterrupted.lines()
    assert tiny_run.listed() == uninterrupted.listed()
    assert tiny_run.sha256() == uninterrupted.sha256()


def test_a_disk_that_is_full_while_the_model_is_written_loses_nothing(uninterrupted: TinyRun, tiny_run: TinyRun) -> None:
    assert tiny_run.attempt("model-written:1")[0] == -9
    weights = tiny_run.folder / "main" / "checkpoints" / "step-00000030" / CHECKPOINT_FILES[0]
    code, message = tiny_run.attempt(largest_file=weights.stat().st_size // 2)
    assert code == 1
    assert "model: cannot write the model" in message
    assert not tiny_run.model_folder.exists()
    tiny_run.train()
    assert tiny_run.sha256() == uninterrupted.sha256()
