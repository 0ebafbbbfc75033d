"""`results/NAME` is complete or absent, and costs no second copy."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import checked_sidecar
from relm.errors import RelmError
from relm.reporting.publish import REPORT_FILES, publish, publish_run, published_files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return two finished files, one for a sub-folder."""
    sources = {"README.md": tmp_path / "work/card", "eval/held_out.json": tmp_path / "work/figures"}
    (tmp_path / "work").mkdir()
    for name, source in sources.items():
        source.write_text(name)
    return sources


def reported(run: Any) -> Any:
    """Return the plan of a finished run that has a report."""
    for name in REPORT_FILES:
        (run.plan.run_folder / "report").mkdir(exist_ok=True)
        (run.plan.run_folder / "report" / name).write_text(name)
    return run.plan


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    }


def test_files_are_hard_links_under_their_names(files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "results/smoke/tiny"
    sentence = publish(files, folder)
    assert content(folder) == {"README.md": "README.md", "eval/held_out.json": "eval/held_out.json"}
    assert (folder / "README.md").samefile(files["README.md"])
    assert sentence == f"{folder} has 2 files of 27 B, hard-linked"


def test_a_log_is_copied_for_training_may_cut_it(files: dict[str, Path], tmp_path: Path) -> None:
    log = files["README.md"].with_name("train.jsonl")
    log.write_text("{}\n")
    publish({**files, "train.jsonl": log}, tmp_path / "results/tiny")
    log.write_text("")
    assert content(tmp_path / "results/tiny")["train.jsonl"] == "{}\n"


def test_where_links_are_impossible_files_are_copied(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    assert publish(files, tmp_path / "results/a").endswith("2 of them copied from another file system")
    assert content(tmp_path / "results/a") == {name: name for name in files}
    assert not (tmp_path / "results/a/README.md").samefile(files["README.md"])


def test_a_link_in_the_work_folder_is_followed(files: dict[str, Path], tmp_path: Path) -> None:
    alias = tmp_path / "work/alias"
    alias.symlink_to(files["README.md"])
    publish({"README.md": alias}, tmp_path / "a")
    assert not (tmp_path / "a/README.md").is_symlink()


def test_an_old_folder_is_replaced_whole(files: dict[str, Path], tmp_path: Path) -> None:
    old = tmp_path / "results/a"
    (old / "eval").mkdir(parents=True)
    (old / "eval/lambada.json").write_text("of an older recipe")
    publish(files, old)
    assert sorted(content(old)) == ["README.md", "eval/held_out.json"]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["a"]


def test_a_missing_file_changes_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    publish(files, tmp_path / "a")
    files["eval/held_out.json"].unlink()
    with pytest.raises(RelmError, match=r"without .*work/figures; run the steps that make them"):
        publish(files, tmp_path / "a")
    assert sorted(content(tmp_path / "a")) == ["README.md", "eval/held_out.json"]
    with pytest.raises(RelmError):
        publish(files, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_what_a_killed_run_left_is_cleared_away(files: dict[str, Path], tmp_path: Path) -> None:
    for leftover in (".a.partial", ".a.before"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "junk").write_text("")
    publish(files, tmp_path / "a")
    assert sorted(content(tmp_path / "a")) == ["README.md", "eval/held_out.json"]
    assert not list(tmp_path.glob(".a.*"))


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
    assert sorted(content(tmp_path / "a")) == ["README.md", "eval/held_out.json"]
    assert not list(tmp_path.glob(".a.*"))


def test_a_place_that_cannot_be_written_is_a_clear_error(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RelmError, match="cannot be written"):
        publish(files, tmp_path / "results/a")


def test_a_run_of_one_phase_publishes_train_jsonl(finished_run: Callable[..., Any]) -> None:
    names = set(published_files(finished_run().plan))
    assert names == {
        *("README.md", "report.html", "recipe.json", "provenance.json", "ro-crate-metadata.json", "verify.json"),
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("model.safetensors", "model.safetensors.json"),
        *("train.jsonl", "order.json", "checkpoints.jsonl", "eval/held_out.json", "eval/samples.json"),
    }


def test_a_model_is_published_with_the_sidecar_that_names_its_files(finished_run: Callable[..., Any], in_project: Path) -> None:
    publish_run(reported(finished_run()), in_project / "results/tiny")
    files = checked_sidecar(in_project / "results/tiny/model.safetensors")["files"]
    assert {*files} == {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


def test_a_changed_model_is_not_published_and_the_old_folder_stays(finished_run: Callable[..., Any], in_project: Path) -> None:
    plan = reported(finished_run())
    publish_run(plan, in_project / "results/tiny")
    before = content(in_project / "results/tiny")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        path = plan.model_folder("main") / name
        whole = path.read_bytes()
        path.unlink()  # the published file is the same
        path.write_bytes(whole.replace(b"}", b"]"))
        with pytest.raises(RelmError, match=f"main/model/{name}: sha256 is"):
            publish_run(plan, in_project / "results/tiny")
        path.write_bytes(whole)
    assert content(in_project / "results/tiny") == before
    publish_run(plan, in_project / "results/tiny")


def test_several_phases_publish_a_log_each_and_the_last_model(
    finished_run: Callable[..., Any], recipe: Callable[..., Any]
) -> None:
    phase = recipe()["pretrain"]["main"]
    plan = finished_run(recipe(pretrain={"short": phase, "long": phase})).plan
    files = published_files(plan)
    assert {"train.short.jsonl", "train.long.jsonl", "checkpoints.short.jsonl", "checkpoints.long.jsonl"} <= set(files)
    assert "train.jsonl" not in files
    assert files["model.safetensors"] == plan.run_folder / "long/model/model.safetensors"
