import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.artifact import sidecar_of, write_json
from relm.errors import RelmError
from relm.examples.manifest import (
    Manifest,
    Shard,
    Split,
    TokenizerFacts,
    length_histogram,
    read_manifest,
    summed,
    write_manifest,
)


def sidecar(path: Path, **changes: Any) -> Path:
    """Write the sidecar of a shard of tokens, which need not exist."""
    facts = {
        "file": path.name,
        "sha256": "ab" * 32,
        "size": 8,
        "objective": "causal",
        "layout": "tokens",
        "dtype": "uint16",
        "tokens": 4,
        "documents": 2,
        "words": 3,
        "bytes": 9,
        "tokenizer_sha256": "cd" * 32,
        "vocabulary_size": 400,
        "special": {"end_of_text": 0, "mask": None},
        "settings": {"objectives": ["causal"]},
        "idx_sha256": "ef" * 32,
        "source": "01" * 32,
        "length_histogram": [[1, 1], [4, 1]],
    }
    write_json(sidecar_of(path), {key: value for key, value in {**facts, **changes}.items() if value is not None})
    return path


def table_sidecar(path: Path, **changes: Any) -> Path:
    """Write the sidecar of a table."""
    facts = {"objective": "masked", "layout": "table", "examples": 2, "idx_sha256": None, **changes}
    return sidecar(path, **{"settings": {"objectives": ["masked"], "sequence_length": 4}, **facts})


def listed(file: str, size: int, tokens: int, **more: Any) -> Shard:
    return Shard(file, "ab" * 32, size, "uint16", tokens, 2, **{"source": "01" * 32, **more})


def test_a_manifest_sums_the_sidecars_and_is_read_back(tmp_path) -> None:
    train = [
        sidecar(tmp_path / "a.train.bin"),
        sidecar(tmp_path / "b.train.bin", tokens=6, size=12, words=10, length_histogram=[[4, 2]]),
    ]
    held_out = [sidecar(tmp_path / "a.held_out.bin")]
    message = write_manifest({"train": train, "held_out": held_out}, tmp_path / "manifest.json")
    assert message == "listed 3 shards; train: 10 tokens of 4 documents; held_out: 4 tokens of 2 documents"
    index = {"idx_sha256": "ef" * 32}
    shards = [listed("a.train.bin", 8, 4, **index), listed("b.train.bin", 12, 6, **index)]
    assert read_manifest(tmp_path / "manifest.json") == Manifest(
        "causal",
        TokenizerFacts("cd" * 32, 400, 0, {"end_of_text": 0, "mask": None}),
        {
            "train": Split(10, 4, 13, 18, shards, length_histogram=[[1, 1], [4, 3]]),
            "held_out": Split(4, 2, 3, 9, [listed("a.held_out.bin", 8, 4, **index)], length_histogram=[[1, 1], [4, 1]]),
        },
        "tokens",
        {"objectives": ["causal"]},
    )


def test_a_manifest_of_tables_counts_examples_and_how_full_they_are(tmp_path) -> None:
    train = [table_sidecar(tmp_path / "a.arrow"), table_sidecar(tmp_path / "b.arrow", examples=3, tokens=11)]
    message = write_manifest({"train": train}, tmp_path / "manifest.json")
    assert message == "listed 2 shards; train: 15 tokens in 5 examples of 4 documents, 75.0% utilisation"
    manifest = read_manifest(tmp_path / "manifest.json")
    assert (manifest.objective, manifest.layout) == ("masked", "table")
    assert manifest.settings == {"objectives": ["masked"], "sequence_length": 4}
    assert [shard.examples for shard in manifest.splits["train"].shards] == [2, 3]
    assert (manifest.splits["train"].examples, manifest.splits["train"].utilisation) == (5, 0.75)


def test_rows_of_any_length_have_no_padding_to_speak_of(tmp_path) -> None:
    settings = {"objectives": ["seq2seq"]}
    table_sidecar(tmp_path / "a.arrow", objective="seq2seq", settings=settings)
    write_manifest({"train": [tmp_path / "a.arrow"]}, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json").splits["train"].utilisation is None


def test_a_tokenizer_may_lack_an_end_of_text(tmp_path) -> None:
    special = {"end_of_text": None, "cls": 2, "mask": 4}
    write_manifest({"train": [table_sidecar(tmp_path / "a.arrow", special=special)]}, tmp_path / "manifest.json")
    facts = read_manifest(tmp_path / "manifest.json").tokenizer
    assert (facts.end_of_text_id, facts.special) == (None, special)


def test_manifests_of_older_versions_are_still_read(tmp_path) -> None:
    shard = {"file": "a.bin", "sha256": "ab" * 32, "size": 8, "dtype": "uint16", "tokens": 4, "documents": 2}
    split = {"tokens": 4, "documents": 2, "words": 3, "bytes": 9, "shards": [shard]}
    tokenizer = {"sha256": "cd" * 32, "vocabulary_size": 400, "end_of_text_id": 0}
    write_json(tmp_path / "manifest.json", {"objective": "causal", "tokenizer": tokenizer, "splits": {"train": split}})
    assert read_manifest(tmp_path / "manifest.json") == Manifest(
        "causal",
        TokenizerFacts("cd" * 32, 400, 0),
        {"train": Split(4, 2, 3, 9, [Shard("a.bin", "ab" * 32, 8, "uint16", 4, 2)])},
    )


def test_lengths_are_counted_up_to_powers_of_two() -> None:
    assert length_histogram(np.array([1, 2, 3, 4, 5, 512, 513])) == [[1, 1], [2, 1], [4, 2], [8, 1], [512, 1], [1024, 1]]
    assert length_histogram(np.array([0, 1])) == [[1, 2]]
    assert length_histogram(np.array([], dtype=int)) == []
    assert summed([[[1, 2], [8, 1]], [], [[4, 1], [8, 1]]]) == [[1, 2], [4, 1], [8, 2]]


def test_shards_elsewhere_are_listed_relative_to_the_manifest(tmp_path) -> None:
    shards = {"train": [sidecar(tmp_path / "shards" / "a.train.bin")]}
    write_manifest(shards, tmp_path / "made" / "manifest.json")
    assert read_manifest(tmp_path / "made" / "manifest.json").splits["train"].shards[0].file == "../shards/a.train.bin"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer_sha256", "00" * 32),
        ("dtype", "int32"),
        ("vocabulary_size", 500),
        ("objective", "masked"),
        ("layout", "table"),
        ("special", {"end_of_text": 7}),
        ("settings", {"objectives": ["masked"]}),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, key, value) -> None:
    shards = [sidecar(tmp_path / "a.train.bin"), sidecar(tmp_path / "b.train.bin", **{key: value})]
    with pytest.raises(RelmError, match=rf"b\.train\.bin: {key} is {re.escape(str(value))}, but .*a\.train\.bin has"):
        write_manifest({"train": shards}, tmp_path / "manifest.json")
    assert not (tmp_path / "manifest.json").exists()


def test_a_sidecar_that_lacks_a_fact_is_named(tmp_path) -> None:
    shards = [sidecar(tmp_path / "a.train.bin"), sidecar(tmp_path / "b.train.bin", words=None)]
    with pytest.raises(RelmError, match=r"b\.train\.bin\.json: words: Field required"):
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
        ('"vocabulary_size": 400', '"vocabulary_size": "400"', "tokenizer.vocabulary_size: .* valid integer, found '400'"),
        ('"dtype": "uint16",', "", r"splits\.train\.shards\.0\.dtype: Field required"),
        ('"causal"', '"guessing"', "objective: expected causal, masked, seq2seq, .*, score, found 'guessing'"),
        ('"layout": "tokens"', '"layout": "rows"', "layout: expected tokens, table, found 'rows'"),
        ('"examples": null', '"examples": "7"', "examples: Input should be a valid integer, found '7'"),
        ('"mask": null', '"mask": true', r"special\.mask: Input should be a valid integer, found True"),
        ('"splits"', '"parts"', "splits: Field required"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises(RelmError, match=message):
            read_manifest(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(RelmError, match="Input should be an object, found"):
        read_manifest(path)
