"""A run does not hash a shard twice, unless the shard may have changed."""

import os
import shutil
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.run_folder import SHARDS
from relm.training.shard_stamps import known_shards, require_unwritten, stamps_of


@pytest.fixture
def data(examples: Path, tmp_path: Path) -> Path:
    """A manifest with its shard and index, to be changed by tests."""
    folder = tmp_path / "data"
    shutil.copytree(examples, folder)
    return folder / "manifest.json"


def hashes(run: Path, manifest: Path, resumes: bool = True, writes: bool = True) -> bool:
    with known_shards(run, stamps_of(manifest, ["train"]), resumes, writes) as check_content:
        return check_content


def test_a_new_run_hashes_everything_and_a_resumed_one_nothing(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert hashes(run, data, resumes=False)
    assert not hashes(run, data)
    assert hashes(run, data, resumes=False)
    assert hashes(tmp_path / "other run", data)


def test_a_process_that_does_not_write_records_nothing(data: Path, tmp_path: Path) -> None:
    assert hashes(tmp_path / "run", data, writes=False)
    assert not (tmp_path / "run").exists()
    assert hashes(tmp_path / "run", data)


@pytest.mark.parametrize("file", ["shard.train.bin", "shard.train.idx"])
def test_a_rewritten_shard_is_hashed_even_with_the_old_modification_time(data: Path, tmp_path: Path, file: str) -> None:
    assert hashes(tmp_path / "run", data, resumes=False)
    shard = data.parent / file
    before = shard.stat()
    with open(shard, "rb+") as content:
        content.write(b"\0")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hashes(tmp_path / "run", data)


def test_another_manifest_of_the_same_files_is_hashed(data: Path, tmp_path: Path) -> None:
    assert hashes(tmp_path / "run", data, resumes=False)
    data.write_text(data.read_text().replace('"sha256": "', '"sha256": "0', 2))
    assert hashes(tmp_path / "run", data)


def test_shards_that_could_not_be_opened_are_not_recorded(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError), known_shards(tmp_path / "run", stamps_of(data, ["train"]), resumes=True, writes=True):
        raise RelmError("changed since")
    assert hashes(tmp_path / "run", data)


def test_a_split_that_was_not_opened_before_is_hashed(data: Path, tmp_path: Path) -> None:
    other = data.parent / "shard.held_out.bin"
    shutil.copy(data.parent / "shard.train.bin", other)
    shutil.copy(data.parent / "shard.train.idx", other.with_suffix(".idx"))
    head, _, tail = data.read_text().rpartition("shard.train.bin")
    data.write_text(f"{head}{other.name}{tail}")
    assert hashes(tmp_path / "run", data, resumes=False)
    with known_shards(tmp_path / "run", stamps_of(data, ["train", "held_out"]), resumes=True, writes=True) as check_content:
        assert check_content
    with known_shards(tmp_path / "run", stamps_of(data, ["train", "held_out"]), resumes=True, writes=True) as check_content:
        assert not check_content


@pytest.mark.parametrize("text", ["", "[]", "{", "{}"])
def test_a_broken_record_is_written_again(data: Path, tmp_path: Path, text: str) -> None:
    assert hashes(tmp_path / "run", data, resumes=False)
    (tmp_path / "run" / SHARDS).write_text(text)
    assert hashes(tmp_path / "run", data)
    assert not hashes(tmp_path / "run", data)


def test_an_absent_shard_is_no_error_here(data: Path, tmp_path: Path) -> None:
    assert hashes(tmp_path / "run", data, resumes=False)
    (data.parent / "shard.train.bin").unlink()
    assert hashes(tmp_path / "run", data)


def test_a_file_that_was_replaced_or_deleted_while_mapped_is_no_harm(data: Path) -> None:
    stamps, shard = stamps_of(data, ["train"]), data.parent / "shard.train.bin"
    require_unwritten(stamps)
    shutil.copy2(shard, shard.with_suffix(".new"))
    shard.with_suffix(".new").replace(shard)
    require_unwritten(stamps)
    shard.unlink()
    require_unwritten(stamps)
