"""Arrays of JSON, in plain files and in archives."""

import json
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from small_archives import COMPRESS, SUFFIX, tar_of
from small_sources import content, extracted, files_of, read
from test_archive_limits import LARGE_ARCHIVES, MEMORY, header

from relm import limits
from relm.corpus import tar_members
from relm.errors import RelmError
from small_dumps import written

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
        ({"a.json": b"[{]"}, r"all.tar.gz: a.json: not valid JSON .*; expected one array of objects"),
        ({"a.json": b'{"story": "x"}'}, r"a.json: expected an array of objects, found a dict"),
        ({"a.json": b'[{"story": "x"}, 3]'}, r'a.json, object 2: expected an object, as in {"text": ...}, found 3'),
        ({"a.json": b'[{"text": "x"}]'}, r"a.json, object 1: lacks the key 'story'; it has 'text'"),
        ({"a.json": b'[{"story": 3}]'}, r"a.json, object 1: story: expected a text, found 3"),
        ({"b.json": array("x")}, r"json_arrays.held_out_members: found no a.json"),
    ],
)
def test_faults_are_named_by_member_and_object(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=message):
        read(archive(tmp_path, members), **ARRAYS, json_arrays={"held_out_members": ["a.json"]})


def test_an_archive_that_is_cut_is_refused(tmp_path: Path) -> None:
    members = {"a.json": array(*(f"{n * n}" for n in range(5000)))}
    source = written(tmp_path, tar_of(members)[:-3000], "all.tar.gz")
    with pytest.raises(RelmError, match=r"all.tar.gz: damaged or truncated near byte .* \(.*\); download it again"):
        read(source, **ARRAYS)


# --- archives that state more than they should -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in LARGE_ARCHIVES if kind != "zip directory"])
def test_a_large_header_is_not_taken_into_memory(kind: str, tmp_path: Path) -> None:
    source = written(tmp_path, LARGE_ARCHIVES[kind][0](), "all.tar.gz")
    tracemalloc.start()
    try:
        with pytest.raises(RelmError, match=r"all.tar.gz: the archive has a header of more than 1,048,576 bytes; download it"):
            read(source, **ARRAYS)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_an_archive_out_of_proportion_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"a.json": array("first"), "b.json": b"[" + b" " * 20_000_000 + b"]"}
    source = archive(tmp_path, members)
    monkeypatch.setattr(tar_members, "RATIO_ALLOWANCE", 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(
            RelmError, match="unpacks to more than 10,000,000 bytes, out of proportion to its size; download it"
        ):
            read(source, **ARRAYS)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_a_file_with_holes_is_not_filled_up(tmp_path: Path) -> None:
    holes = {"GNU.sparse.map": "0,9", "GNU.sparse.size": str(1 << 40), "GNU.sparse.name": "a.json"}
    source = written(tmp_path, header(tarfile.REGTYPE, 9, **holes) + bytes(1024), "all.tar")
    with pytest.raises(RelmError, match="out of proportion to its size"):
        read(source, **ARRAYS)


@pytest.mark.parametrize("packed", [True, False])
def test_an_array_that_does_not_fit_into_memory_is_refused(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = array("a story" * 20)
    source = archive(tmp_path, {"a.json": text}) if packed else written(tmp_path, text, "a.json")
    monkeypatch.setattr(limits, "available_memory", lambda: 4 * len(text))
    assert read(source, **ARRAYS)
    monkeypatch.setattr(limits, "available_memory", lambda: 4 * len(text) - 1)
    message = f"a.json, an array of {len(text)} bytes: needs .* of memory, .* is available; divide it into several files"
    with pytest.raises(RelmError, match=message):
        read(source, **ARRAYS)


@pytest.mark.parametrize("compression", COMPRESS)
def test_archives_are_read_by_their_content_and_not_by_their_name(compression: str, tmp_path: Path) -> None:
    content = COMPRESS[compression](tar_of({"a.json": array("one")}, "w"))
    assert len(read(written(tmp_path, content, f"all{SUFFIX[compression]}"), **ARRAYS)) == 1
    assert read(written(tmp_path, tar_of({}, "w"), "empty"), **ARRAYS) == []


def test_a_member_that_is_a_link_is_no_array(tmp_path: Path) -> None:
    source = written(tmp_path, tar_of({"b.json": array("one")}, links={"a.json": "/etc/passwd"}), "all.tar.gz")
    assert len(read(source, **ARRAYS)) == 1
