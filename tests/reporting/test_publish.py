"""`results/NAME` is complete or absent, and shares no byte with the run's own files."""

import errno
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.plan.products import published_files
from relm.reporting.publish import publish


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return two finished files, one for a sub-folder."""
    sources = {"README.md": tmp_path / "work/card", "eval/held_out.json": tmp_path / "work/figures"}
    (tmp_path / "work").mkdir()
    for name, source in sources.items():
        source.write_text(name)
    return sources


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    }


def test_files_are_copies_next_to_the_list_of_their_hashes_in_place_of_others(files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "results/smoke/tiny"
    for left in (folder / "eval/lambada.json", *(folder.with_name(f".tiny.{name}") / "junk" for name in ("partial", "before"))):
        left.parent.mkdir(parents=True)
        left.write_text("of an older recipe, or of a killed run")
    alias = tmp_path / "work/alias"
    alias.symlink_to(files["README.md"])
    sentence = publish({**files, "README.md": alias}, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert not (folder / "README.md").is_symlink()
    hashes = {name: sha256_of(path) for name, path in files.items()}
    assert content(folder) == {
        "README.md": "README.md",
        "eval/held_out.json": "eval/held_out.json",
        "SHA256SUMS": f"{hashes['README.md']}  README.md\n{hashes['eval/held_out.json']}  eval/held_out.json\n",
    }
    assert re.fullmatch(r".* has 3 files of 27 B", sentence)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    for name, own in files.items():
        (folder / name).write_text("x")
        assert own.read_text() == name, "damage to a published file leaves the run's own unharmed"


def test_a_file_that_was_changed_since_the_report_is_not_published(files: dict[str, Path], tmp_path: Path) -> None:
    files["ro-crate-metadata.json"] = files["README.md"].with_name("crate")
    files["ro-crate-metadata.json"].write_text("{}")
    publish(files, tmp_path / "a")
    with pytest.raises(RelmError, match=r"work/figures: sha256 is \w+, but the report lists 0: changed since. Delete .*crate"):
        publish(files, tmp_path / "a", {"eval/held_out.json": "0"})
    assert sorted(content(tmp_path / "a")) == ["README.md", "SHA256SUMS", "eval/held_out.json", "ro-crate-metadata.json"]
    assert not list(tmp_path.glob(".a.*"))


def test_a_missing_file_changes_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    publish(files, tmp_path / "a")
    files["eval/held_out.json"].unlink()
    with pytest.raises(RelmError, match=r"without .*work/figures; run the steps that make them"):
        publish(files, tmp_path / "a")
    assert sorted(content(tmp_path / "a")) == ["README.md", "SHA256SUMS", "eval/held_out.json"]
    with pytest.raises(RelmError):
        publish(files, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_if_the_last_rename_fails_the_old_folder_is_back(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(files, tmp_path / "a")
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name == ".a.partial":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(RelmError, match=r"No space left on device .* nothing was changed"):
        publish({"README.md": files["README.md"]}, tmp_path / "a")
    assert sorted(content(tmp_path / "a")) == ["README.md", "SHA256SUMS", "eval/held_out.json"]
    assert not list(tmp_path.glob(".a.*"))


def test_a_place_that_cannot_be_written_is_a_clear_error(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RelmError, match="cannot be written"):
        publish(files, tmp_path / "results/a")


def test_several_phases_publish_a_log_each_and_the_last_model(
    finished_run: Callable[..., Any], recipe: Callable[..., Any]
) -> None:
    phase = recipe()["pretrain"]["main"]
    plan = finished_run(recipe(pretrain={"short": phase, "long": phase})).plan
    files = published_files(plan)
    assert {"train.short.jsonl", "train.long.jsonl", "checkpoints.short.jsonl", "checkpoints.long.jsonl"} <= set(files)
    assert "train.jsonl" not in files
    assert files["model.safetensors"] == plan.run_folder / "long/model/model.safetensors"
