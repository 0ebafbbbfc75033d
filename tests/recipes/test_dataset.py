"""Combinations of a dataset's keys, and the keys in its identity."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.identity import dataset_identity, digest, folder_files
from relm.recipes.published_models import PretrainedModel
from relm.recipes.section import validate

FILE = {"sha256": "0" * 64, "size": 3, "sources": [{"url": "https://example.org/a"}]}
TWO = {"a.txt": FILE, "b.txt": FILE}
HUB = {"name": "somebody/letters", "revision": "0" * 40}


def dataset(**keys: Any) -> Dataset:
    return validate(Dataset, {"title": "Test", "licence": "CC0-1.0", "language": "en", **keys}, Path("set.yaml"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"format": "text_lines"}, "a dataset has one of files, folder and hub; found none"),
        ({"format": "text_lines", "files": TWO, "folder": "x"}, "one of files, folder and hub; found files and folder"),
        ({"format": "text_lines", "hub": HUB}, "hugging_face and hub go together; found hub with format: text_lines"),
        ({"format": "hugging_face", "files": TWO}, "go together; found files with format: hugging_face"),
        ({"format": "hugging_face", "folder": "x"}, "go together; found folder with format: hugging_face"),
        ({"format": "hugging_face", "hub": {**HUB, "revision": "main"}}, r"hub\.revision: .*found 'main'"),
        ({"format": "hugging_face", "hub": {**HUB, "revision": "0" * 39 + "g"}}, r"hub\.revision"),
        ({"format": "hugging_face", "hub": {**HUB, "revision": "0" * 7}}, r"hub\.revision"),
        ({"format": "hugging_face", "hub": {**HUB, "name": "letters"}}, r"hub\.name"),
        ({"format": "hugging_face", "hub": {"name": "somebody/letters"}}, r"hub\.revision: missing"),
        ({"format": "text_lines", "files": TWO, "text_key": "body"}, "text_key: read with format: json_lines or json_arrays"),
        (
            {"format": "json_lines", "files": TWO, "split": "test"},
            "split: read with format: hugging_face only, found 'test'",
        ),
        ({"format": "text_lines", "files": TWO, "ends_mid_page": True}, "ends_mid_page: read with format: mediawiki_xml"),
        ({"format": "text_lines", "files": TWO, "pattern": "*"}, "pattern: chooses files of a folder, and the dataset has"),
        (
            {"format": "text_lines", "files": TWO, "held_out_files": ["c"]},
            "held_out_files: c is not in files: a.txt, b.txt",
        ),
        ({"format": "text_lines", "files": TWO, "held_out_files": ["a.txt", "b.txt"]}, "held_out_files: lists every file"),
        (
            {"format": "text_lines", "files": TWO, "held_out_files": ["a.txt"], "held_out_one_in": 9},
            "held_out_files: excludes held_out_one_in",
        ),
        ({"format": "text_lines", "files": TWO, "held_out_end": 0.1}, "held_out_end: read with format: text_files"),
        (
            {"format": "text_files", "files": TWO, "held_out_end": 0.1, "held_out_one_in": 9},
            "held_out_end: excludes held_out_one_in",
        ),
        ({"format": "text_files", "files": TWO, "held_out_end": 1.0}, "held_out_end: .*less than 1"),
        (
            {"format": "text_lines", "files": {"a.txt": {**FILE, "sha256": int("1" * 64)}}},
            r"1 error\n  files\.a\.txt\.sha256: expected text, and YAML reads this as a number: put it in quotes; found 1111",
        ),
        ({"format": "text_lines", "files": {datetime.date(2024, 1, 1): FILE}}, "1 error\n  files, key 2024-01-01: expected"),
        ({"format": "wiki_text", "files": TWO}, "format: .*'wikitext'.*found 'wiki_text'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_that_do_not_go_together_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(RelmError, match=message) as raised:
        dataset(**keys)
    assert str(raised.value).startswith("set.yaml: 1 error\n")


@pytest.mark.parametrize(
    ("name", "files", "read"),
    [
        ("wikitext", ["wiki.test.raw", "wiki.train.raw", "wiki.valid.raw", "x/wiki.train.tokens"], [1, 2, 3]),
        ("json_lines", ["a.jsonl", "a.jsonl.json", "b.json", "c/d.jsonl"], [0, 3]),
        ("parquet", ["a.parquet", "b.txt"], [0]),
        ("text_sentences", ["a.md", "a.txt"], [1]),
        ("mediawiki_xml", ["a.xml", "a.xml.bz2", "b.txt"], [0, 1]),
    ],
)
def test_each_format_declares_the_names_of_its_files(name: str, files: list[str], read: list[int], tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("x")
    found = folder_files(dataset(format=name, folder=str(tmp_path)))
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [files[index] for index in read]


def test_one_document_in_so_many_is_held_out_by_default() -> None:
    assert dataset(format="text_files", files=TWO).one_in == 10
    assert dataset(format="text_lines", files=TWO).one_in == 100
    assert dataset(format="wikitext", files=TWO, held_out_one_in=7).one_in == 7


def key(**keys: Any) -> str:
    return digest(dataset_identity(dataset(**keys), Path("unused")))


LINES = {"format": "json_lines", "files": TWO}
STREAM = {"format": "hugging_face", "hub": HUB}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LINES, {"format": "text_lines"}),
        (LINES, {"text_key": "body"}),
        (LINES, {"id_key": "id"}),
        (LINES, {"skip_damaged_records": True}),
        (LINES, {"title_key": "title"}),
        (LINES, {"held_out_files": ["a.txt"]}),
        (LINES, {"held_out_one_in": 5}),
        ({"format": "text_files", "files": TWO}, {"held_out_end": 0.1}),
        (STREAM, {"hub": {**HUB, "name": "somebody/words"}}),
        (STREAM, {"hub": {**HUB, "revision": "1" * 40}}),
        (STREAM, {"hub": {**HUB, "config": "greek"}}),
        (STREAM, {"split": "test"}),
    ],
    ids=str,
)
def test_what_decides_the_documents_is_identity(before: dict, after: dict) -> None:
    assert key(**{**before, **after}) != key(**before)


@pytest.mark.parametrize("before", [LINES, STREAM], ids=["files", "hub"])
def test_a_default_written_out_and_words_are_none(before: dict) -> None:
    records = {
        "text_key": "text",
        "id_key": None,
        "title_key": None,
        "licence": "MIT",
        "homepage": "https://x",
        "smoke": "small",
        "skip_damaged_records": False,
    }
    assert key(**{**before, **records}) == key(**before)


@pytest.mark.parametrize("kind", [Dataset, PretrainedModel, PublishedTest])
def test_a_homepage_is_an_address_of_the_web(kind: Any) -> None:
    """The report page links to it."""
    faults = []
    for homepage in ("javascript:alert(1)", "https://example.org/"):
        try:
            kind.model_validate({"homepage": homepage})
        except ValidationError as error:
            faults.append([fault["loc"] for fault in error.errors()])
    assert ("homepage",) in faults[0]
    assert ("homepage",) not in faults[1]
