import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relm.artifact import sidecar_of
from relm.corpus import documents
from relm.corpus.documents import (
    Document,
    choose_split,
    encode_document,
    find_held_out_one_in,
    hash_title,
    read_documents,
    split_files,
)
from relm.errors import RelmError


def test_a_document_is_one_line_of_compact_json_in_utf8() -> None:
    found = encode_document(Document("7", 'Ţară "x"', "un\ndoi  trei\u2028patru"))
    assert found.line == '{"id":"7","title":"Ţară \\"x\\"","text":"un\\ndoi  trei\u2028patru"}\n'.encode()
    assert (found.words, found.bytes) == (4, len("un\ndoi  trei\u2028patru".encode()))


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    documents = [Document("1", "A", "a\r\nb \x00 \u0085c"), Document("2", "ß", "")]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(encode_document(document).line for document in documents))
    assert list(read_documents(path)) == documents


def test_the_held_out_choice_is_the_sha256_of_the_title() -> None:
    digest = hashlib.sha256("Übung".encode()).hexdigest()
    assert hash_title("Übung") == int(digest[:16], 16)
    assert [choose_split(number, 3) for number in (0, 1, 2, 3, 300)] == ["held_out", "train", "train", "held_out", "held_out"]


@pytest.mark.parametrize(
    ("numbers", "wanted", "fitting"), [([4, 5], 100, 5), ([7, 7], 5, None), ([7 * 11, 11 * 13], 5, 7), ([9], 2, None)]
)
def test_a_fitting_held_out_one_in_leaves_documents_in_both_splits(
    numbers: list[int], wanted: int, fitting: int | None
) -> None:
    assert find_held_out_one_in(numbers, wanted) == fitting


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id":"1","title":"A","text":"a', "not valid JSON"),
        (b'{"id":"1","title":"A","text":"\xff"}', "not valid JSON"),
        (b'{"id":"1","text":"a"}', "expected the keys id, title and text, found id, text"),
        (b"[]", "found list"),
        (b'{"id":1,"title":"A","text":"a"}', "id: expected a string, found 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(encode_document(Document("1", "A", "a")).line + line + b"\n")
    with pytest.raises(RelmError, match=r"x\.jsonl, line 2: .*" + message):
        list(read_documents(path))


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="extract the documents first"):
        next(read_documents(tmp_path / "none.jsonl"))


def test_both_splits_appear_or_none(tmp_path: Path) -> None:
    outputs = {"train": tmp_path / "t.jsonl", "held_out": tmp_path / "h.jsonl"}
    for path in outputs.values():
        path.write_text("old")
        sidecar_of(path).write_text(json.dumps({"old": True}))
    with contextlib.suppress(ZeroDivisionError), split_files(outputs) as files:
        files["train"].write(b"new" * (1 // 0))
    assert {path.name for path in tmp_path.iterdir()} == {"t.jsonl", "h.jsonl", "t.jsonl.json", "h.jsonl.json"}
    assert all(path.read_text() == "old" for path in outputs.values())
    with split_files(outputs) as files:
        files["train"].write(b"new")
        assert outputs["train"].read_text() == "old"
    assert outputs["train"].read_text() == "new"
    assert outputs["held_out"].read_text() == ""
    assert not any(sidecar_of(path).exists() for path in outputs.values()), "a sidecar describes a file that is gone"


@pytest.mark.parametrize("text", ["", " ", "a", "a b", " ab  c d ", "ab\u2003c\x1cd\x85e", "abc" * 5, " " * 9 + "x" * 9])
def test_words_are_counted_in_pieces_as_in_one(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in range(1, 8):
        monkeypatch.setattr(documents, "COUNTED", size)
        assert documents.count_words(text) == len(text.split())


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=3, max_size=3))
def test_a_line_is_what_the_json_module_writes(texts: list[str]) -> None:
    document = Document(*texts)
    written = json.dumps(document._asdict(), ensure_ascii=False, separators=(",", ":")) + "\n"
    assert encode_document(document).line == written.encode()


def test_the_split_is_decided_by_the_title_or_by_what_is_given() -> None:
    document = Document("1", "Title", "text")
    assert encode_document(document).number == hash_title("Title")
    assert encode_document(document, decided_by="text").number == hash_title("text")
    assert encode_document(document).line == encode_document(document, decided_by="text").line
