"""One document a line, one sentence a line, and WikiText."""

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from small_sources import content, extracted, files_of, read

from relm.corpus import line_documents, lines
from relm.corpus.documents import choose_split, hash_title
from relm.errors import RelmError
from small_dumps import written

WIKITEXT = (
    " \n = A = \n \n Text of A . \n = 1 rad / s and k = \n = = Part = = \n \n End . \n \n"
    " = = = Deep = = = \n \n = B C = \n \n Text of B . \n = No blank before = \n \n = No blank after = \n And so on . \n \n"
)


def test_lines_are_documents_called_by_file_and_line(tmp_path: Path) -> None:
    source = written(tmp_path, "\ufeffone\r\n\n  two words \n\u2028three\x85\r\x0c\n \nfour", "a.txt")
    assert read(source, format="text_lines") == [
        ("a.txt:1", "a.txt:1", "one"),
        "empty",
        ("a.txt:3", "a.txt:3", "  two words "),
        ("a.txt:4", "a.txt:4", "\u2028three\x85\r\x0c"),
        "empty",
        ("a.txt:6", "a.txt:6", "four"),
    ]


def test_lines_are_counted(tmp_path: Path) -> None:
    found = extracted(written(tmp_path, "one\n\ntwo words\nx\ny", "a.txt"), tmp_path, format="text_lines", held_out_one_in=2)
    assert found.skipped == {"empty": 1}
    assert "extracted 4 documents with 5 words from a.txt" in found.sentence
    assert found.sentence.endswith(" lines/s")


def test_the_text_of_a_line_decides_its_split_wherever_it_stands(tmp_path: Path) -> None:
    texts = [f"line {number}" for number in range(300)]
    forwards = extracted(written(tmp_path, "\n".join(texts)), tmp_path / "a", format="text_lines")
    backwards = extracted(written(tmp_path, "\n".join(texts[::-1])), tmp_path / "b", format="text_lines")
    held_out = [text for text in texts if choose_split(hash_title(text), 100) == "held_out"]
    assert [document.text for document in forwards.held_out] == held_out
    assert [document.text for document in backwards.held_out] == held_out[::-1]
    assert held_out


def test_sentences_are_concatenated_until_a_blank_line(tmp_path: Path) -> None:
    source = written(tmp_path, "\n\nOne.\nTwo.\n\n \t\nThree.\r\n\r\nFour.\nFive. ", "a.txt")
    assert read(source, format="text_sentences") == [
        ("a.txt:3", "a.txt:3", "One.\nTwo."),
        ("a.txt:7", "a.txt:7", "Three."),
        ("a.txt:9", "a.txt:9", "Four.\nFive. "),
    ]


def test_articles_begin_at_headings_between_blank_lines_only(tmp_path: Path) -> None:
    found = read(written(tmp_path, WIKITEXT, "w"), format="wikitext")
    assert [document[:2] for document in found] == [("w:1", "A"), ("w:12", "B C")]
    assert "\n".join(document[2] for document in found) + "\n" == WIKITEXT


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (" = X = ", "X"),
        (" = X =", "X"),
        (" = = X = = ", None),
        (" = <unk> = ", "<unk>"),
        (" = E = m c ² = ", "E = m c ²"),
        ("= X =", None),
        (" =  = ", None),
        (" = X", None),
    ],
)
def test_what_is_a_heading(line: str, title: str | None, tmp_path: Path) -> None:
    text = f" = First = \n \n{line}\n \n = Last = \n \n x \n"
    found = read(written(tmp_path, text), format="wikitext")
    assert [document[1] for document in found] == [t for t in ("First", title, "Last") if t]


PUBLISHED = {  # table 1 of https://arxiv.org/abs/1609.07843
    "wikitext-2-raw/wiki.train.raw": 600,
    "wikitext-2-raw/wiki.valid.raw": 60,
    "wikitext-2-raw/wiki.test.raw": 60,
    "wikitext-103/wiki.valid.tokens": 60,
    "wikitext-103/wiki.test.tokens": 60,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_wikitext_has_the_published_number_of_articles_and_keeps_every_line(
    name: str, shared_data: Path, tmp_path: Path
) -> None:
    packed = shared_data / f"{name}.xz"
    found = extracted(packed, tmp_path, format="wikitext", held_out_one_in=10, workers=2)
    assert len(found.documents) == PUBLISHED[name]
    assert "\n".join(document.text for document in found.documents) + "\n" == lzma.decompress(packed.read_bytes()).decode()


# --- any size, any number of workers ---------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read blocks of a few lines, and use workers for files of any size."""
    monkeypatch.setattr("relm.corpus.decompression.BLOCK", 777)
    monkeypatch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 1)


def random_lines(count: int) -> str:
    draw = random.Random(7)
    return "\n".join(f" = {n} = " if draw.random() < 0.1 else "é" * draw.randrange(9) for n in range(count)) + "\n"


@pytest.mark.parametrize("text_format", ["text_lines", "text_sentences", "wikitext"])
def test_the_same_bytes_for_any_blocks_batches_and_workers(
    text_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    source = written(tmp_path, " \n" + random_lines(3000).replace("\n", "\n \n"))
    assert len(extracted(source, tmp_path / "one", format=text_format, held_out_one_in=3).documents) > 100
    request.getfixturevalue("small_blocks")
    monkeypatch.setattr(line_documents, "BATCH", 100)
    for name, workers in (("small", 1), ("three", 3)):
        extracted(source, tmp_path / name, format=text_format, held_out_one_in=3, workers=workers)
        assert content(tmp_path / name) == content(tmp_path / "one")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_fault_after_the_wanted_documents_does_not_matter_and_the_first_fault_is_reported(
    workers: int, tmp_path: Path, small_blocks: None
) -> None:
    text = "".join(f"line {number}\n" for number in range(4000)).encode()
    middle, late = (text.index(b"line %d\n" % number) for number in (2500, 3500))
    bad = text[:middle] + b"\xff" + text[middle + 1 : late] + b"\xfe" + text[late + 1 :]
    source = written(tmp_path, bad)
    with pytest.raises(RelmError, match=rf"dump\.xml, line 2501, byte {middle}: not valid UTF-8 \(found b'\\xff'\)"):
        extracted(source, tmp_path / "out", format="text_lines", workers=workers)
    assert list((tmp_path / "out").iterdir()) == []
    found = extracted(source, tmp_path / "out", documents=200, format="text_lines", held_out_one_in=5, workers=workers)
    assert len(found.documents) == 200


def test_one_line_must_not_be_a_whole_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    for module in (lines, line_documents):
        monkeypatch.setattr(module, "LONGEST", 3000)
    source = written(tmp_path, "a\nb\n" + "word " * 1000 + "\n")
    with pytest.raises(RelmError, match=r"dump\.xml, line 3: expected at most 3 kB in a line; give a file of text lines"):
        extracted(source, tmp_path / "out", format="text_lines")
    source = written(tmp_path, "a\n\n" + "word\n" * 1000)
    with pytest.raises(RelmError, match=r"line 3: the document that begins here exceeds 3 kB; put blank lines between"):
        extracted(source, tmp_path / "out", format="text_sentences")
    with pytest.raises(RelmError, match=r"line 1: the document that begins here exceeds 3 kB; is this a WikiText"):
        extracted(source, tmp_path / "out", format="wikitext")


# --- damaged files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
def test_compressed_files_are_read_and_a_cut_one_leaves_nothing(
    compress: Callable[[bytes], bytes], tmp_path: Path, small_blocks: None
) -> None:
    packed = compress(random_lines(3000).encode())
    source = written(tmp_path, packed, "lines.txt.packed")
    found = extracted(source, tmp_path / "good", format="text_lines")
    assert len(found.documents) > 2000
    source.write_bytes(packed[: len(packed) // 2])
    for text_format in ("text_lines", "json_lines", "text_sentences", "wikitext"):
        with pytest.raises(RelmError, match=r"lines\.txt\.packed.*(truncated|damaged|not valid JSON|expected headings)"):
            extracted(source, tmp_path / "out", format=text_format)
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("text_format", ["text_lines", "text_sentences", "wikitext", "json_lines"])
def test_bytes_that_are_no_text_are_named_with_line_and_byte(text_format: str, tmp_path: Path) -> None:
    for bad, what in ((b"\xe9t", "not valid UTF-8"), (b"\0", "a NUL: not a text file, or one in UTF-16")):
        source = written(tmp_path, b"\xef\xbb\xbf{}\n\xc3\xa9" + bad + b"\n")
        with pytest.raises(RelmError, match=rf"dump\.xml, line 2, byte 8: {what}"):
            extracted(source, tmp_path / "out", format=text_format)
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("text_format", ["text_lines", "text_sentences", "wikitext", "json_lines"])
@pytest.mark.parametrize("nothing", ["", "\n \n"])
def test_an_empty_file_is_an_error(text_format: str, nothing: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"dump\.xml: (contains no documents|expected headings)"):
        extracted(written(tmp_path, nothing), tmp_path / "out", format=text_format)


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"nowhere\.txt: cannot be read: No such file"):
        extracted(tmp_path / "nowhere.txt", tmp_path / "out", format="text_lines")


# --- folders, and splits that the files give -------------------------------------------------------------------------------


def test_a_folder_is_read_file_by_file_in_the_order_of_paths(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    for name, text in {"b/1.txt": "x\ny", "a.txt": "z\n", "c.txt": "", "d.md": "no"}.items():
        (folder / name).write_text(text)
    found = extracted(folder, tmp_path / "out", format="text_lines", held_out_one_in=2)
    assert sorted(document.id for document in found.documents) == ["a.txt:1", "b/1.txt:1", "b/1.txt:2"]
    assert found.skipped == {"empty": 1}


def wikitext_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "wikitext"
    folder.mkdir()
    for split, count in {"train": 30, "valid": 5, "test": 4}.items():
        (folder / f"wiki.{split}.tokens").write_text("".join(f" \n = {split} {n} = \n \n x \n" for n in range(count)))
    return folder


def test_files_of_a_folder_can_be_held_out_whole_and_the_test_file_is_left_alone(tmp_path: Path) -> None:
    folder, settings = wikitext_folder(tmp_path), {"format": "wikitext", "held_out_files": ["wiki.valid.tokens"]}
    found = extracted(folder, tmp_path / "out", **settings)
    assert [document.title for document in found.train] == [f"train {n}" for n in range(30)]
    assert [document.title for document in found.held_out] == [f"valid {n}" for n in range(5)]
    few = extracted(folder, tmp_path / "out", documents=8, **settings)
    assert [len(few.train), len(few.held_out)] == [3, 5]
    with pytest.raises(RelmError, match="no documents are left for training; correct held_out_files, or read more"):
        extracted(folder, tmp_path / "out", documents=5, **settings)


def test_a_held_out_file_that_a_folder_lacks_is_an_error(tmp_path: Path) -> None:
    settings = {"format": "wikitext", "held_out_files": ["wiki.dev.tokens"]}
    with pytest.raises(RelmError, match=r"held_out_files: found no wiki.dev.tokens; it has wiki.train.tokens, wiki.valid"):
        extracted(wikitext_folder(tmp_path), tmp_path / "out", **settings)


def test_a_shard_that_is_held_out_whole_leaves_the_other_split_empty(tmp_path: Path) -> None:
    folder = wikitext_folder(tmp_path)
    names = ["wiki.train.tokens", "wiki.valid.tokens"]
    counts = {}
    for name in names:
        found = extracted(folder / name, tmp_path / name, names=names, format="wikitext", held_out_files=names[1:])
        counts[name] = [len(found.train), len(found.held_out)]
        assert all(path.exists() for path in files_of(tmp_path / name).values())
    assert counts == {"wiki.train.tokens": [30, 0], "wiki.valid.tokens": [0, 5]}
