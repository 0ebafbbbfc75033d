import json
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import read_json, sidecar_of, write_json
from relm.errors import RelmError
from relm.examples.manifest import Manifest, Shard, Split, TokenizerFacts, read_manifest, write_manifest


def sidecar(path: Path, **changes: Any) -> Path:
    """The sidecar of a shard that need not exist."""
    facts = {
        "file": path.name,
        "sha256": "ab" * 32,
        "size": 8,
        "objective": "causal",
        "dtype": "uint16",
        "tokens": 4,
        "documents": 2,
        "words": 3,
        "bytes": 9,
        "tokenizer_sha256": "cd" * 32,
        "vocabulary_size": 400,
        "end_of_text_id": 0,
        "idx_sha256": "ef" * 32,
        "source": "01" * 32,
    }
    write_json(sidecar_of(path), {key: value for key, value in {**facts, **changes}.items() if value is not None})
    return path


def test_a_manifest_sums_the_sidecars_and_is_read_back(tmp_path) -> None:
    train = [sidecar(tmp_path / "a.train.bin"), sidecar(tmp_path / "b.train.bin", tokens=6, size=12, words=10)]
    held_out = [sidecar(tmp_path / "a.held_out.bin")]
    said = write_manifest({"train": train, "held_out": held_out}, tmp_path / "manifest.json")
    assert said == "listed 3 shards; train: 10 tokens of 4 documents; held_out: 4 tokens of 2 documents"
    shards = [Shard("a.train.bin", "ab" * 32, 8, "uint16", 4, 2), Shard("b.train.bin", "ab" * 32, 12, "uint16", 6, 2)]
    assert read_manifest(tmp_path / "manifest.json") == Manifest(
        "causal",
        TokenizerFacts("cd" * 32, 400, 0),
        {
            "train": Split(10, 4, 13, 18, shards),
            "held_out": Split(4, 2, 3, 9, [Shard("a.held_out.bin", "ab" * 32, 8, "uint16", 4, 2)]),
        },
    )


def test_the_file_is_the_agreed_json(tmp_path) -> None:
    shards = {"train": [sidecar(tmp_path / "a.train.bin")], "held_out": [sidecar(tmp_path / "a.held_out.bin")]}
    write_manifest(shards, tmp_path / "manifest.json")
    content = read_json(tmp_path / "manifest.json")
    assert list(content) == ["objective", "tokenizer", "splits"]
    assert list(content["tokenizer"]) == ["sha256", "vocabulary_size", "end_of_text_id"]
    assert list(content["splits"]["train"]) == ["tokens", "documents", "words", "bytes", "shards"]
    assert list(content["splits"]["train"]["shards"][0]) == ["file", "sha256", "size", "dtype", "tokens", "documents"]


def test_shards_elsewhere_are_listed_relative_to_the_manifest(tmp_path) -> None:
    shards = {"train": [sidecar(tmp_path / "shards" / "a.train.bin")]}
    write_manifest(shards, tmp_path / "made" / "manifest.json")
    assert read_manifest(tmp_path / "made" / "manifest.json").splits["train"].shards[0].file == "../shards/a.train.bin"


@pytest.mark.parametrize(
    ("key", "value"), [("tokenizer_sha256", "00" * 32), ("dtype", "int32"), ("vocabulary_size", 500), ("objective", "masked")]
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, key, value) -> None:
    shards = [sidecar(tmp_path / "a.train.bin"), sidecar(tmp_path / "b.train.bin", **{key: value})]
    with pytest.raises(RelmError, match=rf"b\.train\.bin: {key} is {value}, but .*a\.train\.bin has"):
        write_manifest({"train": shards}, tmp_path / "manifest.json")
    assert not (tmp_path / "manifest.json").exists()


def test_a_sidecar_that_lacks_a_fact_is_named(tmp_path) -> None:
    shards = [sidecar(tmp_path / "a.train.bin"), sidecar(tmp_path / "b.train.bin", words=None)]
    with pytest.raises(RelmError, match=r"b\.train\.bin\.json: lacks words"):
        write_manifest({"train": shards}, tmp_path / "manifest.json")
    with pytest.raises(RelmError, match=r"c\.train\.bin\.json: no such file"):
        write_manifest({"train": [tmp_path / "c.train.bin"]}, tmp_path / "manifest.json")


def test_a_split_without_documents_is_refused_but_an_empty_shard_is_not(tmp_path) -> None:
    empty = sidecar(tmp_path / "a.held_out.bin", tokens=0, documents=0, words=0, bytes=0, size=0)
    full = sidecar(tmp_path / "b.held_out.bin")
    write_manifest({"held_out": [empty, full]}, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json").splits["held_out"].tokens == 4
    for shards in ([empty], []):
        with pytest.raises(RelmError, match="split held_out has no documents in any shard"):
            write_manifest({"train": [sidecar(tmp_path / "a.train.bin")], "held_out": shards}, tmp_path / "m.json")


def test_a_manifest_with_a_fault_names_the_key(tmp_path) -> None:
    path = tmp_path / "manifest.json"
    write_manifest({"train": [sidecar(tmp_path / "a.train.bin")]}, path)
    good = path.read_text()
    for old, new, message in (
        ('"vocabulary_size": 400', '"vocabulary_size": "400"', "tokenizer: vocabulary_size: expected int, found '400'"),
        ('"dtype": "uint16",', "", r"splits\.train: shards\[0\]: lacks dtype"),
        ('"causal"', '"guessing"', "objective: expected causal, found 'guessing'"),
        ('"splits"', '"parts"', "lacks splits"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises(RelmError, match=message):
            read_manifest(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(RelmError, match="expected an object, found list"):
        read_manifest(path)
