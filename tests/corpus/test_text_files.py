import os
from pathlib import Path
from typing import Any

import pytest
from small_sources import extracted, read

from relm.corpus import text_files
from relm.corpus.text_files import read_text
from relm.errors import RelmError
from small_dumps import dataset, written


def test_files_are_documents_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a b.txt", "a/ü.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}", encoding="utf-8")
    found = extracted(tmp_path, tmp_path.parent / "out", format="text_files")
    (held_out,) = found.held_out
    assert [document.id for document in found.train] == [
        name for name in ("a b.txt", "a/z.txt", "a/ü.txt", "b.txt") if name != held_out.id
    ]
    assert all(document.text == f"text of {document.title}" == f"text of {document.id}" for document in found.documents)


def test_text_is_verbatim_but_for_the_mark_and_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf  one\r\n\r\ntwo\rthree \x0c<b>&amp; \xef\xbb\xbf\n\n")
    assert read_text(path) == "  one\n\ntwo\rthree \x0c<b>&amp; \ufeff\n\n"


def read_files(folder: Path, **settings: Any) -> Any:
    return extracted(folder, folder.parent / f"{folder.name}-out", format="text_files", **settings)


def test_a_nul_is_an_error_that_names_file_and_byte(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_bytes("wide".encode("utf-16-le"))
    with pytest.raises(RelmError, match=r"wide\.txt: byte 1: a NUL: not a text file, or one in UTF-16"):
        read_files(tmp_path)


def test_a_file_too_long_for_one_document_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST", 1000)
    written(tmp_path, "x" * 1001, "long.txt")
    with pytest.raises(
        RelmError, match=r"long\.txt: has 1 kB, expected at most .* for one document.*text_lines or text_sentences"
    ):
        read_files(tmp_path)


def test_a_file_name_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xe9.txt")).write_text("x")
    with pytest.raises(RelmError, match="name is not valid UTF-8; rename it"):
        read_files(tmp_path)


def test_the_source_may_be_one_file(tmp_path: Path) -> None:
    path = written(tmp_path, "It was", "book.txt")
    assert read(path, format="text_files") == [("book.txt", "book.txt", "It was")]
    assert dataset("book.txt", format="text_files").one_in == 10


def test_the_end_of_each_file_can_be_held_out(tmp_path: Path) -> None:
    for name, text in {"a.txt": "abcdefghiü", "b.txt": "0123 5678"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_files(tmp_path, held_out_end=0.3)
    assert found.train == [("a.txt:0", "a.txt", "abcdefg"), ("b.txt:0", "b.txt", "0123 5")]
    assert found.held_out == [("a.txt:7", "a.txt", "hiü"), ("b.txt:6", "b.txt", "678")]


def test_a_text_whose_end_is_held_out_is_cut_where_a_share_of_its_characters_rounds_down(tmp_path: Path) -> None:
    path = written(tmp_path, "x" * 1_115_394, "book.txt")
    found = extracted(path, tmp_path / "out", format="text_files", held_out_end=0.1)
    assert [len(document.text) for document in found.documents] == [1_003_854, 111_540]


def test_a_text_too_short_for_two_ends_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "x", "book.txt")
    with pytest.raises(RelmError, match=r"book\.txt: held_out_end: 0\.5 of 1 documents empties a split"):
        extracted(path, tmp_path / "out", format="text_files", held_out_end=0.5)
    assert list((tmp_path / "out").iterdir()) == []
