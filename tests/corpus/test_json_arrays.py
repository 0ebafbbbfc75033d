"""Arrays of JSON, alone and in archives."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_archives import tar_of
from small_dumps import written
from small_sources import content, extracted, files_of, read

from relm.errors import RelmError

ARRAYS = {"format": "json_arrays", "text_key": "story"}


def array(*texts: Any) -> bytes:
    return json.dumps([{"story": text, "words": ["a"]} for text in texts]).encode()


def archive(folder: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    return written(folder, tar_of(members, mode), "all.tar.gz")


def test_each_object_of_an_array_is_a_document_called_by_file_and_number(tmp_path: Path) -> None:
    source = written(tmp_path, array("one", None, " \n", "\n\nfour\u00e9 "), "r.json")
    expected = [("r.json:1", "r.json:1", "one"), "empty", "empty", ("r.json:4", "r.json:4", "\n\nfour\u00e9 ")]
    assert read(source, **ARRAYS) == expected
    stripped = read(source, **ARRAYS, json_arrays={"strip": True})
    assert stripped == [*expected[:3], ("r.json:4", "r.json:4", "four\u00e9")]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_member_that_is_held_out_decides_the_split(tmp_path: Path, mode: str) -> None:
    members = {"./data01.json": array("c"), "./data00.json": array("a", "b"), "./._data00.json": b"\0", "./readme.txt": b"x"}
    found = extracted(archive(tmp_path, members, mode), tmp_path, **ARRAYS, json_arrays={"held_out_members": ["data00.json"]})
    assert [document.text for document in found.train] == ["c"]
    assert [(document.id, document.text) for document in found.held_out] == [("data00.json:1", "a"), ("data00.json:2", "b")]


def test_without_one_the_texts_decide_and_workers_change_nothing(tmp_path: Path) -> None:
    source = archive(tmp_path, {f"{n}.json": array(*(f"story {n} {i}" for i in range(1500))) for n in range(2)})
    outputs = [tmp_path / "one", tmp_path / "two"]
    for workers, output in enumerate(outputs, 1):
        output.mkdir()
        found = extracted(source, output, workers=workers, **ARRAYS, held_out_one_in=10)
        assert len(found.documents) == 3000
        assert 200 < len(found.held_out) < 400
    assert content(outputs[0]) == content(outputs[1])
    assert files_of(outputs[0])["train"].read_bytes()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.json": b"[{]"}, r"all.tar.gz: a.json: not valid JSON .*; each file holds one array of objects"),
        ({"a.json": b'{"story": "x"}'}, r"a.json: expected an array of objects, found a dict"),
        ({"a.json": b'[{"story": "x"}, 3]'}, r'a.json, object 2: expected an object, as in {"text": ...}, found 3'),
        ({"a.json": b'[{"text": "x"}]'}, r"a.json, object 1: no key 'story', it has 'text'"),
        ({"a.json": b'[{"story": 3}]'}, r"a.json, object 1: story: expected a text, found 3"),
        ({"b.json": array("x")}, r"json_arrays.held_out_members: a.json is not in it"),
    ],
)
def test_faults_are_named_by_member_and_object(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=message):
        read(archive(tmp_path, members), **ARRAYS, json_arrays={"held_out_members": ["a.json"]})


def test_an_archive_that_is_cut_is_refused(tmp_path: Path) -> None:
    members = {"a.json": array(*(f"{n * n}" for n in range(5000)))}
    source = written(tmp_path, tar_of(members)[:-3000], "all.tar.gz")
    with pytest.raises(RelmError, match=r"all.tar.gz: is damaged or truncated \(.*\); download it again"):
        read(source, **ARRAYS)
