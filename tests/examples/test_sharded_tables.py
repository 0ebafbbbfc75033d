"""The tables of several shards are read as one."""

import json
from pathlib import Path

import numpy as np
import pytest
from table_rows import COLUMNS, as_lists, rows_of, written

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.manifest import write_manifest
from relm.examples.sharded_tables import ExampleTables


def shard(path: Path, count: int, first: int) -> Path:
    written(path, count, first=first)
    facts = {"objective": "masked", "layout": "table", "dtype": "uint16", "tokens": 3 * count, "documents": count}
    tokenizer = {"tokenizer_sha256": "cd" * 32, "vocabulary_size": 60_000, "special": {"end_of_text": None, "pad": 0}}
    write_sidecar(path, **facts, **tokenizer, examples=count, words=count, bytes=count, settings={"sequence_length": 5})
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write 13 + 0 + 9 + 1 rows in four shards."""
    sizes = ((13, 0), (0, 13), (9, 13), (1, 22))
    shards = [shard(tmp_path / "shards" / f"{number}.table", *size) for number, size in enumerate(sizes)]
    write_manifest({"train": shards, "held_out": shards[:1]}, tmp_path / "manifest.json")
    return tmp_path / "manifest.json"


@pytest.mark.usefixtures("small_batches")
def test_shards_read_as_one_table_in_the_requested_order(manifest) -> None:
    opened = ExampleTables(manifest, "train")
    assert len(opened) == 23
    assert tuple(opened.columns.values()) == COLUMNS
    assert opened.manifest.splits["train"].utilisation == 0.6
    expected = rows_of(23)
    for indices in (np.array([22, 0, 13, 12, 12, 21, 5]), np.arange(23)[::-1], np.array([20, 19]), np.array([], dtype=int)):
        for column in COLUMNS:
            found = opened.rows(column.name, indices)
            if column.width == "ragged":
                assert as_lists(found)[: len(indices)] == [as_lists(expected[column.name])[index] for index in indices]
            else:
                assert found.tolist() == expected[column.name][indices].tolist()
    for index in (-1, 23):
        with pytest.raises(IndexError):
            opened.rows("length", np.array([index]))


def test_shards_that_are_not_the_manifests_are_refused(manifest) -> None:
    path = manifest.parent / "shards" / "2.table"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RelmError, match=r"2\.table: changed: sha256 is .*manifest\.json says"):
        ExampleTables(manifest, "train")
    assert len(ExampleTables(manifest, "train", check_content=False)) == 23
    path.write_bytes(content[:-5])
    with pytest.raises(RelmError, match=r"2\.table: has .* bytes, .*manifest\.json says"):
        ExampleTables(manifest, "train", check_content=False)
    path.unlink()
    with pytest.raises(RelmError, match=r"2\.table: no such file, although .*manifest\.json lists it"):
        ExampleTables(manifest, "train", check_content=False)


def test_a_manifest_that_counts_other_rows_is_refused(manifest) -> None:
    content = json.loads(manifest.read_text())
    content["splits"]["train"]["shards"][0]["examples"] = 12
    manifest.write_text(json.dumps(content))
    with pytest.raises(RelmError, match=r"0\.table: has 13 rows, .*manifest\.json says 12"):
        ExampleTables(manifest, "train")
