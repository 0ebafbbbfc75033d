"""`relm check` finds every change to a published folder, on any machine, and says which step made the file."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from finished_runs import FinishedRun
from relm.artifact import sha256_of, write_json
from relm.cli import main
from relm.errors import RelmError
from relm.graph.reruns import Reruns, _is_of_another_report
from relm.plan.published_files import compare_files
from relm.recipes.resolved import resolve
from relm.reporting.check import DamagedResult, check_folders, describe_published
from relm.reporting.publish import publish

NAMES = {
    "README.md": "report",
    "config.json": "pretrain",
    "eval/held_out.json": "evaluate",
    "model.safetensors": "pretrain",
    "train.long.jsonl": "pretrain, phase long",
    "verify.json": "verify",
}
CRATE, SUMS = "ro-crate-metadata.json", "SHA256SUMS"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Publish a folder in a project, and return its path there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELM_WORK", raising=False)
    files = {name: tmp_path / "own" / name for name in NAMES}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"the content of {name}")
    crate = tmp_path / "own" / CRATE
    entities = [{"@type": "File", "name": name, "sha256": sha256_of(path)} for name, path in files.items()]
    write_json(crate, {"@graph": entities})
    publish({**files, CRATE: crate}, Path("results/tiny"))
    return Path("results/tiny")


def flip(path: Path, position: int) -> None:
    """Change one bit of a file, and neither its size nor its times."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_whole_folder_is_whole_and_so_is_its_copy_elsewhere(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere/copy"))
    for place in (folder, copy):
        assert check_folders([place]) == f"{place}: whole: 8 files have their published sha256"


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_or_missing_file_is_named_with_the_step_that_made_it(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(folder / name, -1)
    assert main(["check", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"{folder}: DAMAGED: 1 file differs or is missing, the first of them from step {NAMES[name].split(',')[0]}" in said
    assert f"  {name}: damaged: sha256 is " in said
    assert f"; made by {NAMES[name]}\n" in said
    (folder / name).unlink()
    with pytest.raises(DamagedResult, match=rf"  {name}: missing: was published; made by {NAMES[name]}"):
        check_folders([folder])


@pytest.mark.parametrize("name", [CRATE, SUMS])
def test_each_byte_of_the_two_lists_counts(folder: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    whole = (copy / name).read_bytes()
    for position in range(0, len(whole), 31):
        (copy / name).write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert compare_files(copy)[0], f"bit 0 of byte {position}"
        (copy / name).write_bytes(whole[:position])
        assert compare_files(copy)[0], f"cut to {position} bytes"


def test_a_wrong_hash_in_the_list_is_not_blamed_on_the_file(folder: Path) -> None:
    path = folder / SUMS
    path.write_text(path.read_text().replace(sha256_of(folder / "verify.json"), "0" * 64))
    with pytest.raises(DamagedResult, match=rf"  {SUMS}: damaged: its sha256 of verify.json .*; made by publish"):
        check_folders([folder])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_changed_together_with_its_line_in_the_list_is_found(folder: Path, name: str) -> None:
    before = sha256_of(folder / name)
    flip(folder / name, 5)
    (folder / SUMS).write_text((folder / SUMS).read_text().replace(before, sha256_of(folder / name)))
    with pytest.raises(DamagedResult, match=rf"  {name}: damaged: {SUMS} has .* as [0-9a-f]{{64}}, {CRATE} as {before}"):
        check_folders([folder])


@pytest.mark.parametrize("change", ["twice", "reversed", "carriage returns"])
def test_a_list_of_hashes_in_another_form_is_damaged(folder: Path, change: str) -> None:
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    forms = {"twice": [*lines, lines[0]], "reversed": lines[::-1], "carriage returns": [f"{line[:-1]}\r\n" for line in lines]}
    (folder / SUMS).write_bytes("".join(forms[change]).encode())
    (found,) = compare_files(folder)[0]
    assert (found.name, found.state) == (SUMS, "damaged")


def test_what_is_in_the_place_of_a_file_is_said(folder: Path) -> None:
    for name in ("config.json", "verify.json", "model.safetensors"):
        (folder / name).unlink()
    (folder / "config.json").mkdir()
    (folder / "verify.json").symlink_to("nowhere")
    os.mkfifo(folder / "model.safetensors")
    assert {found.name: found.detail for found in compare_files(folder)[0]} == {
        "config.json": "was published, and is a folder",
        "verify.json": "was published, and is a link to nowhere, which does not exist",
        "model.safetensors": "was published, and is a special file",
    }


def test_a_file_that_cannot_be_read_hides_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        if path.name in ("config.json", SUMS):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return sha256_of(path)

    flip(folder / "verify.json", 0)
    monkeypatch.setattr("relm.reporting.known_hashes.sha256_of", refuse)
    with pytest.raises(DamagedResult) as caught:
        check_folders([folder])
    assert "  config.json: damaged: cannot be read: Permission denied; made by pretrain\n" in str(caught.value)
    assert "  verify.json: damaged: sha256 is" in str(caught.value)


def test_a_file_that_was_added_is_named_and_damages_nothing(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / ".snakemake_timestamp").write_text("")
    text = check_folders([folder])
    assert "  notes.txt: unexpected: relm did not publish it" in text
    assert "timestamp" not in text


def test_a_folder_without_lists_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="which list its files"):
        check_folders([tmp_path])
    with pytest.raises(RelmError, match="no such folder"):
        check_folders([tmp_path / "none"])


class Reads:
    """Count the files that are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        monkeypatch.setattr("relm.reporting.known_hashes.sha256_of", self)

    def __call__(self, path: Path) -> str:
        self.names.append(path.name)
        return sha256_of(path)


def test_status_reads_only_changed_files_and_each_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plan:
        results = folder

    plan: Any = Plan()
    reads = Reads(monkeypatch)
    assert describe_published(plan) == "8 files as they were published"
    assert reads.names == []
    os.utime(folder / "config.json")
    assert describe_published(plan) == describe_published(plan) == "8 files as they were published"
    assert reads.names == ["config.json"]
    flip(folder / "verify.json", 0)
    assert describe_published(plan) == f"DAMAGED: verify.json; `relm check {folder}` says more"


@pytest.mark.parametrize("deleted", [[SUMS], [CRATE], [SUMS, CRATE], ["README.md"], [*NAMES, SUMS, CRATE]])
def test_a_folder_that_lacks_files_is_published_again(folder: Path, deleted: list[str]) -> None:
    plan: Any = SimpleNamespace(results=folder, fingerprint="0", report_key="0")
    reruns = Reruns(SimpleNamespace(dryrun=False, storage_settings=SimpleNamespace(shared_fs_usage=SharedFSUsage.all())))
    os.utime(folder / "README.md")
    describe_published(plan)  # hashes one file again, and keeps what it knows of the others
    assert reruns.find_reason(plan) is None
    for name in deleted:
        (folder / name).unlink()
    assert reruns.find_reason(plan) in ("missing-files", "no-list-of-hashes")


def test_a_folder_of_an_earlier_version_is_compared_by_its_recipe(run: FinishedRun, in_project: Path) -> None:
    plan = run.plan
    stated = resolve(plan)
    other = {**stated, "recipe": {**stated["recipe"], "title": "Another title"}}
    assert [_is_of_another_report(plan, each) for each in (stated, other, {}, {"recipe": 1})] == [False, True, False, False]
    assert _is_of_another_report(plan, {**stated, "report": "0" * 12})
    assert not _is_of_another_report(plan, {**other, "report": plan.report_key})
