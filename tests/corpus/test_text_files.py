import json
import os
from pathlib import Path

import pytest
from small_dumps import dataset

from relm.corpus.documents import Encoded, Skipped
from relm.corpus.text_files import read_text, read_text_files
from relm.errors import RelmError


def read(folder: Path, pattern: str = "**/*.txt") -> list[tuple[str, str, str] | str]:
    entries = read_text_files(dataset(format="text_files", folder=str(folder), pattern=pattern), folder)
    return [entry.reason if isinstance(entry, Skipped) else tuple(json.loads(entry.line).values()) for entry in entries]


def test_files_are_documents_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a b.txt", "a/ü.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}", encoding="utf-8")
    names = ["a b.txt", "a/z.txt", "a/ü.txt", "b.txt"]
    assert read(tmp_path) == [(name, name, f"text of {name}") for name in names]
    assert read(tmp_path, "*.md") == [("c.md", "c.md", "text of c.md")]


def test_text_is_verbatim_but_for_the_mark_and_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf  one\r\n\r\ntwo\rthree \x0c<b>&amp; \xef\xbb\xbf\n\n")
    assert read_text(path) == "  one\n\ntwo\rthree \x0c<b>&amp; \ufeff\n\n"


def test_empty_files_are_skipped(tmp_path: Path) -> None:
    for name, content in {"a.txt": "", "b.txt": " \n", "c.txt": "c", "d.txt": "\ufeff"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert read(tmp_path) == ["empty", "empty", ("c.txt", "c.txt", "c"), "empty"]


def test_invalid_utf8_is_an_error_that_names_file_and_byte(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(RelmError, match=r"latin\.txt: byte 3: not valid UTF-8 \(found b'\\xe9'\)"):
        read(tmp_path)


def test_a_file_name_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xe9.txt")).write_text("x")
    with pytest.raises(RelmError, match="name is not valid UTF-8; rename it"):
        read(tmp_path)


def test_a_folder_without_matching_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="no file matches"):
        read(tmp_path)


def test_the_source_may_be_one_file(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("It was")
    (entry,) = read_text_files(dataset("book.txt", format="text_files"), path)
    assert isinstance(entry, Encoded)
    assert json.loads(entry.line) == {"id": "book.txt", "title": "book.txt", "text": "It was"}
