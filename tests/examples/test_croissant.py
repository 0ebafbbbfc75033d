import json
import socket
from pathlib import Path
from typing import Any

import mlcroissant
import numpy as np
import pytest

from relm.artifact import sha256_of, write_sidecar
from relm.examples.croissant import licence_url, write_croissant
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer
from relm.examples.table import Column, table_writer
from relm.recipes.datasets import Dataset

FACTS: dict[str, Any] = {
    "dtype": "uint16",
    "tokens": 5,
    "documents": 2,
    "words": 4,
    "bytes": 20,
    "tokenizer_sha256": "cd" * 32,
    "vocabulary_size": 400,
    "special": {"end_of_text": 0},
}
COLUMNS = [Column("input_ids", "uint16", 4), Column("word_starts", "bool", 4), Column("source", "uint16", "ragged")]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise for any connection: Croissant's context is in the file, so nothing is fetched to read it."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def table(path: Path) -> Path:
    with table_writer(path, [*COLUMNS, Column("length", "uint16")], {}) as writer:
        ids = np.arange(8).reshape(2, 4)
        writer.append({"input_ids": ids, "word_starts": ids > 3, "source": ([1, 2, 3], [1, 2]), "length": [4, 1]})
    write_sidecar(path, **FACTS, objective="masked", layout="table", examples=2, settings={"sequence_length": 4})
    return path


def stream(path: Path) -> Path:
    with shard_writer(path, 400) as writer:
        writer.append(np.arange(5), np.array([2, 3]))
    write_sidecar(path, **FACTS, objective="causal", layout="tokens", settings={})
    return path


@pytest.fixture
def dataset() -> Dataset:
    settings = {
        "title": "Pages",
        "licence": "CC-BY-SA-3.0",
        "language": "ro",
        "homepage": "https://example.org/pages",
        "published": "2016-09",
    }
    return Dataset.model_validate({**settings, "format": "text_files", "folder": "texts"})


def described(folder: Path, dataset: Dataset, **splits: list[Path]) -> Path:
    write_manifest(splits, folder / "manifest.json")
    write_croissant(folder / "manifest.json", dataset, "some_pages", folder / "croissant.json")
    return folder / "croissant.json"


def test_the_reference_implementation_accepts_and_understands_a_table(tmp_path, dataset) -> None:
    train = [table(tmp_path / "shards" / f"{number}.arrow") for number in range(2)]
    held_out = [table(tmp_path / "held_out.arrow")]
    metadata = mlcroissant.Dataset(str(described(tmp_path, dataset, train=train, held_out=held_out))).metadata
    assert not metadata.ctx.issues.errors
    assert (metadata.name, metadata.license, metadata.url, metadata.in_language) == (
        "some_pages",
        ["https://spdx.org/licenses/CC-BY-SA-3.0.html"],
        "https://example.org/pages",
        ["ro"],
    )
    assert (metadata.date_published.year, metadata.date_published.month) == (2016, 9)
    assert (metadata.version, metadata.cite_as) == ("1.0.0", "Pages. https://example.org/pages")
    assert "train: 10 tokens in 4 examples of 4 documents; held_out: 5 tokens" in metadata.description
    files = {file.content_url: file.sha256 for file in metadata.distribution if hasattr(file, "sha256")}
    assert files == {path: sha256_of(tmp_path / path) for path in ("shards/0.arrow", "shards/1.arrow", "held_out.arrow")}
    sets = {file.uuid: file.includes for file in metadata.distribution if hasattr(file, "includes")}
    assert sets == {"train-files": ["shards/0.arrow", "shards/1.arrow"], "held_out-files": ["held_out.arrow"]}
    assert [records.uuid for records in metadata.record_sets] == ["train", "held_out"]
    fields = {field.name: field for field in metadata.record_sets[0].fields}
    assert {name: (field.data_type, field.array_shape_tuple) for name, field in fields.items()} == {
        "input_ids": (int, (4,)),
        "word_starts": (bool, (4,)),
        "source": (int, (-1,)),
        "length": (int, None),
    }
    assert fields["input_ids"].source.extract.column == "input_ids"


def test_a_stream_has_files_and_no_records(tmp_path, dataset) -> None:
    metadata = mlcroissant.Dataset(str(described(tmp_path, dataset, train=[stream(tmp_path / "a.bin")]))).metadata
    assert not metadata.ctx.issues.errors
    assert [file.encoding_formats for file in metadata.distribution] == [["application/octet-stream"]]
    assert metadata.record_sets == []


def test_the_same_examples_give_the_same_bytes(tmp_path, dataset) -> None:
    first = described(tmp_path, dataset, train=[table(tmp_path / "a.arrow")]).read_bytes()
    assert described(tmp_path, dataset, train=[table(tmp_path / "a.arrow")]).read_bytes() == first


def test_the_reference_implementation_would_refuse_a_faulty_description(tmp_path, dataset) -> None:
    """This shows that the tests above can fail."""
    path = described(tmp_path, dataset, train=[table(tmp_path / "a.arrow")])
    content = json.loads(path.read_text())
    content["recordSet"][0]["field"][0]["source"]["fileSet"]["@id"] = "elsewhere"
    path.write_text(json.dumps(content))
    with pytest.raises(mlcroissant.ValidationError):
        mlcroissant.Dataset(str(path))


def test_licences_that_are_no_identifiers_stay_words() -> None:
    assert licence_url("GFDL") == "https://spdx.org/licenses/GFDL.html"
    assert licence_url("public domain") == "public domain"
    assert licence_url("https://example.org/licence") == "https://example.org/licence"
