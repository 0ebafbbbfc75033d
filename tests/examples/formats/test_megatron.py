import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from relm.errors import RelmError
from relm.examples.formats import megatron
from relm.examples.formats.megatron import IndexedFile, open_indexed
from relm.examples.storage import shard_writer


def foreign(path: Path, code: int, dtype: str, documents: list[list[list[int]]]) -> Path:
    """Documents of sequences as Megatron-LM writes them, in any of its types."""
    sequences = [sequence for document in documents for sequence in document]
    width = np.dtype(dtype).itemsize
    sizes = [len(sequence) for sequence in sequences]
    starts = np.cumsum([0, *sizes])[:-1] * width
    boundaries = np.cumsum([0, *map(len, documents)])
    path.write_bytes(b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(sequences), len(boundaries))
        + np.array(sizes, "<i4").tobytes()
        + np.array(starts, "<i8").tobytes()
        + np.array(boundaries, "<i8").tobytes()
    )
    return path


def read(opened: IndexedFile) -> list[list[int]]:
    return [piece.tolist() for _, tokens, sizes in opened.blocks() for piece in np.split(tokens, np.cumsum(sizes)[:-1])]


DOCUMENTS = [[[1, 2, 3], [4]], [[5]], [], [[6, 7], [100, 9], [0]]]
JOINED = [[1, 2, 3, 4], [5], [], [6, 7, 100, 9, 0]]
TYPES = [(1, "|u1"), (2, "|i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")]


@pytest.mark.parametrize(("code", "dtype"), TYPES)
def test_every_type_is_read(tmp_path, code, dtype) -> None:
    opened = open_indexed(foreign(tmp_path / "a.bin", code, dtype, DOCUMENTS))
    assert opened.documents == 4
    assert read(opened) == JOINED
    assert all(tokens.dtype == np.int64 for _, tokens, _ in opened.blocks())


def test_documents_are_the_same_whatever_the_blocks(tmp_path, monkeypatch) -> None:
    opened = open_indexed(foreign(tmp_path / "a.bin", 8, "<u2", DOCUMENTS))
    for block in (1, 2, 3, 4, 5, 100):
        monkeypatch.setattr(megatron, "BLOCK", block)
        assert read(opened) == JOINED


def test_both_files_and_their_common_name_are_accepted(tmp_path) -> None:
    foreign(tmp_path / "a_text_document.bin", 4, "<i4", DOCUMENTS)
    for name in ("a_text_document.bin", "a_text_document.idx", "a_text_document"):
        assert read(open_indexed(tmp_path / name)) == JOINED


def test_a_file_may_be_empty(tmp_path) -> None:
    assert read(open_indexed(foreign(tmp_path / "a.bin", 4, "<i4", []))) == []
    assert read(open_indexed(foreign(tmp_path / "b.bin", 8, "<u2", [[]]))) == [[]]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("vocabulary_size", "step", "end", "tokens", "index"),
    [
        (
            50_257,
            7,
            50_256,
            "abe8ed1ca09cee4a985e71f7558829b05c5738f1fcc48607f0c07c9ce049a156",
            "de2357e5c112a29cda42d4772e5d763abe00b66800c48963161754592581ce9a",
        ),
        (
            250_112,
            70_001,
            1,
            "88b6d36fa1cd9b181ecd65a183d0f3a043a6c3e9bf9b81e3ee7fcc209522af6f",
            "4720ea2957306dbe4574bb04a2815cadeecc0437e5615b6e8fe570a169b26d00",
        ),
    ],
)
def test_shards_have_the_bytes_that_megatron_writes(tmp_path, vocabulary_size, step, end, tokens, index) -> None:
    """Compared with files of IndexedDatasetBuilder.add_document of Megatron-LM's megatron/core/datasets/indexed_dataset.py."""

    def token(document: int, position: int) -> int:
        return (step * document * (document if step == 7 else 1) + 3 * position) % vocabulary_size

    documents = [[*(token(number, position) for position in range(1 + number * 5 % 11)), end] for number in range(40)]
    with shard_writer(tmp_path / "a.bin", vocabulary_size) as writer:
        for document in documents:
            writer.append(np.array(document), np.array([len(document)]))
    assert (sha256(tmp_path / "a.bin"), sha256(tmp_path / "a.idx")) == (tokens, index)
    assert read(open_indexed(tmp_path / "a.bin")) == documents


def test_sentences_of_a_document_that_megatron_wrote_are_concatenated(tmp_path) -> None:
    """The bytes are those of the builder with three sequences in some documents, as --split-sentences makes them."""
    documents = [[[(7 * i + j + k) % 100 for j in range(k + 1)] for k in range(1 + i % 3)] for i in range(6)]
    foreign(tmp_path / "a.bin", 8, "<u2", documents)
    assert sha256(tmp_path / "a.bin") == "a76ec58d05ef1388c8d1690e808e83ec1813dd7046332a3603eac0a4c5b86fb0"
    assert sha256(tmp_path / "a.idx") == "bbe5f307a2d90b72aa6cf21416ce09755f6bec5c87700b032a2d2700b7f72c60"
    assert read(open_indexed(tmp_path / "a.bin")) == [sum(document, []) for document in documents]  # noqa: RUF017


def index_bytes(**changes: int) -> bytes:
    facts = {"version": 1, "code": 8, "sequences": 1, "boundaries": 2, "size": 2, "offset": 0, "first": 0, "end": 1, **changes}
    counts = struct.pack("<QBQQ", facts["version"], facts["code"], facts["sequences"], facts["boundaries"])
    return b"MMIDIDX\x00\x00" + counts + struct.pack("<iqqq", *(facts[name] for name in ("size", "offset", "first", "end")))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"", r"a\.idx: begins with b'', expected b'MMIDIDX"),
        (b"TNTIDX\x00\x00" + bytes(30), r"a\.idx: begins with b'TNTIDX.*not an index of Megatron-LM"),
        (index_bytes()[:20], r"a\.idx: begins with b'MMIDIDX"),
        (index_bytes(version=2), r"a\.idx: version 2, expected 1"),
        (index_bytes(code=9), r"a\.idx: type code 9, expected one of 1, 2, 3, 4, 5, 8"),
        (index_bytes()[:-1], r"a\.idx: has 61 bytes, 1 sequences and 2 boundaries need 62: truncated"),
        (index_bytes(sequences=5), r"a\.idx: has 62 bytes, 5 sequences"),
        (index_bytes(size=3), r"a\.bin: holds 2 tokens, a\.idx says 3: truncated"),
        (index_bytes(offset=2), r"a\.idx: sequence 0 has 2 tokens at byte 2, expected at byte 0"),
        (index_bytes(first=1), r"a\.idx: its documents do not cover its 1 sequences"),
        (index_bytes(end=2), r"a\.idx: its documents do not cover its 1 sequences"),
    ],
)
def test_a_damaged_or_foreign_index_is_refused_by_name(tmp_path, index, message) -> None:
    (tmp_path / "a.bin").write_bytes(struct.pack("<2H", 1, 2))
    (tmp_path / "a.idx").write_bytes(index)
    with pytest.raises(RelmError, match=message):
        open_indexed(tmp_path / "a.bin")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(5), r"a\.bin: has 5 bytes, a\.idx says 2 tokens of 2: another file"),
        (bytes(6), r"a\.bin: holds 3 tokens, a\.idx says 2"),
        (bytes(3), r"a\.bin: holds 1 tokens, a\.idx says 2"),
        (b"", r"a\.bin: holds 0 tokens, a\.idx says 2"),
    ],
)
def test_a_file_of_another_size_than_the_index_says_is_refused(tmp_path, content, message) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "a.idx").write_bytes(index_bytes())
    with pytest.raises(RelmError, match=message):
        open_indexed(tmp_path / "a.bin")


def test_a_missing_half_is_named(tmp_path) -> None:
    path = foreign(tmp_path / "a.bin", 8, "<u2", DOCUMENTS)
    path.unlink()
    with pytest.raises(RelmError, match=r"a\.bin: no such file; a\.idx and a\.bin belong together"):
        open_indexed(tmp_path / "a")
