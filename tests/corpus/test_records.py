"""Lines of JSON and rows of Parquet."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_sources import content, extracted, read

from relm.corpus import parquet_rows
from relm.corpus.documents import choose_split, hash_title
from relm.errors import RelmError
from small_dumps import dataset, written

JSON = {"format": "json_lines"}
PARQUET = {"format": "parquet"}


def json_lines(folder: Path, *records: Any) -> Path:
    return written(folder, "".join(json.dumps(record) + "\n" for record in records), "r.jsonl")


def parquet(folder: Path, rows_a_group: int = 2, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "r.parquet", row_group_size=rows_a_group)
    return folder / "r.parquet"


# --- good records ----------------------------------------------------------------------------------------------------------


def test_the_text_of_an_object_is_a_document_called_by_file_and_line(tmp_path: Path) -> None:
    source = json_lines(tmp_path, {"text": "é\nx", "n": [1]}, {"text": " \n"}, {"text": None}, {"text": "two"})
    expected = [("r.jsonl:1", "r.jsonl:1", "é\nx"), "empty", "empty", ("r.jsonl:4", "r.jsonl:4", "two")]
    assert read(source, **JSON) == expected
    source.write_text('\ufeff{"text": "\\u00e9\\nx"}\r\n\n{"text": ""}\n {"text": "two"}', encoding="utf-8")
    assert read(source, **JSON) == expected


def test_other_keys_may_have_the_text_id_and_title(tmp_path: Path) -> None:
    source = json_lines(tmp_path, {"body": "x", "n": 7, "name": "Seven"}, {"body": "y", "n": "8", "name": ""})
    expected = [("7", "Seven", "x"), ("8", "", "y")]
    assert read(source, text_key="body", id_key="n", title_key="name", **JSON) == expected
    assert read(source, text_key="body", id_key="n", **JSON) == [("7", "7", "x"), ("8", "8", "y")]
    rows = parquet(tmp_path, body=["x", "y"], n=pa.array([7, 8]), name=["Seven", ""])
    assert read(rows, text_key="body", id_key="n", title_key="name", **PARQUET) == expected


@pytest.mark.parametrize("rows_a_group", [1, 2, 100])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=["string", "large", "dictionary"]
)
def test_rows_of_parquet_are_documents(rows_a_group: int, kind: pa.DataType, tmp_path: Path) -> None:
    source = parquet(tmp_path, rows_a_group, other=[1, 2, 3, 4], text=pa.array(["a", None, "ț", ""]).cast(kind))
    assert read(source, **PARQUET) == [
        ("r.parquet:1", "r.parquet:1", "a"),
        "empty",
        ("r.parquet:3", "r.parquet:3", "ț"),
        "empty",
    ]


def test_the_title_decides_the_split_where_there_is_one_and_else_the_text(tmp_path: Path) -> None:
    records = [{"text": f"text {n // 2}", "title": f"title {n}"} for n in range(200)]
    source = json_lines(tmp_path, *records)
    by_text = extracted(source, tmp_path / "a", held_out_one_in=5, **JSON)
    assert [d.text for d in by_text.held_out] == [
        r["text"] for r in records if choose_split(hash_title(r["text"]), 5) == "held_out"
    ]
    assert not {d.text for d in by_text.held_out} & {d.text for d in by_text.train}  # the same text twice is in one split
    by_title = extracted(source, tmp_path / "b", held_out_one_in=5, title_key="title", **JSON)
    assert [d.title for d in by_title.held_out] == [
        r["title"] for r in records if choose_split(hash_title(r["title"]), 5) == "held_out"
    ]


def test_the_same_bytes_for_any_blocks_and_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    texts = ["ă" * draw.randrange(1, 30) for _ in range(900)]
    lines, rows = json_lines(tmp_path, *({"text": text} for text in texts)), parquet(tmp_path, 100, text=texts)
    for source, settings in ((lines, JSON), (rows, PARQUET)):
        extracted(source, tmp_path / f"one-{source.name}", held_out_one_in=9, **settings)
        with monkeypatch.context() as patch:
            patch.setattr("relm.corpus.decompression.BLOCK", 777)
            patch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 1)
            patch.setattr(parquet_rows, "BATCH", 100)
            extracted(source, tmp_path / f"three-{source.name}", held_out_one_in=9, workers=3, **settings)
        assert content(tmp_path / f"one-{source.name}") == content(tmp_path / f"three-{source.name}")


def test_a_row_group_larger_than_a_batch_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH", 5000)
    source = parquet(tmp_path, 1000, text=[f"{n:050}" for n in range(1000)])
    sizes = [len(rows.table) for rows in parquet_rows.batch_parquet(dataset(folder=".", **PARQUET), source)]
    assert sum(sizes) == 1000
    assert 10 < len(sizes) < 200
    assert read(source, **PARQUET)[999] == ("r.parquet:1000", "r.parquet:1000", f"{999:050}")


# --- bad records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', r"r\.jsonl, line 2: not valid JSON \(Expecting ',' delimiter.*; expected one object per line"),
        ('{"text": "a\tb"}', "line 2: not valid JSON"),
        ("[" * 100_000, "line 2: not valid JSON"),
        ('["x"]', r"line 2: expected an object, as in {\"text\": \.\.\.}, found \[\"x\"\]"),
        ('{"txt": "x", "id": 1}', r"line 2: lacks the key 'text'; it has 'txt', 'id'. Correct `text_key`"),
        ("{}", "line 2: lacks the key 'text'; it has none"),
        ('{"text": 3}', "line 2: text: expected a text, found 3"),
        ('{"text": ["x"]}', r"line 2: text: expected a text, found \['x'\]"),
        ('{"text": "ab\\ud800"}', r"line 2: text: character 2: half of a surrogate pair \('\\ud800'\), which is not text"),
        ('{"text": "a\\u0000"}', "line 2: text: character 1: a NUL, which is not text"),
    ],
    ids=lambda value: value[:20],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_is_named_and_nothing_is_written(
    line: str, message: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 50_000)
    source = written(tmp_path, '{"text": "good"}\n' + line + '\n{"text": "good"}\n', "r.jsonl")
    with pytest.raises(RelmError, match=message):
        extracted(source, tmp_path / "out", workers=workers, **JSON)
    assert list((tmp_path / "out").iterdir()) == []


# What one line of JSON may have in place of text, and what the warning calls it.
DAMAGED = {
    b'{"text": "ab\\ud800", "title": ""}': "text: character 2: half of a surrogate pair ('\\ud800'), which is not text",
    b'{"text": "\\udc00\\ud83d", "title": ""}': "text: character 0: half of a surrogate pair ('\\udc00'), which is not text",
    b'{"text": "a\\u0000", "title": ""}': "text: character 1: a NUL, which is not text",
    b'{"text": "a\0b"}': "a NUL, which is not text",
    b"\0\0\0": "a NUL, which is not text",
    b'{"text": "a\xed\xa0\x80", "title": ""}': "text: character 1: half of a surrogate pair ('\\ud800'), which is not text",
    b'{"text": "a", "title": "\\ud800"}': "title: character 0: half of a surrogate pair ('\\ud800'), which is not text",
}


def good_lines(count: int) -> list[bytes]:
    return [json.dumps({"text": f"text {n}", "title": f"\U0001f600 {n}"}).encode() for n in range(count)]


@pytest.mark.parametrize("workers", [1, 3])
def test_damaged_records_are_skipped_by_option_counted_and_named(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("relm.corpus.decompression.BLOCK", 100)
    monkeypatch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 1)
    good = good_lines(40)
    content = b"\n".join([*good[:20], *DAMAGED, *good[20:]])
    source = written(tmp_path, content, "r.jsonl")
    found = extracted(
        source, tmp_path / "out", workers=workers, title_key="title", held_out_one_in=5, skip_damaged_records=True, **JSON
    )
    assert [document.text for document in found.documents] == [f"text {n}" for n in range(40)]
    assert found.skipped == {"empty": 0, "damaged_records": len(DAMAGED)}
    assert f"; skipped: damaged records {len(DAMAGED)};" in found.sentence
    expected = [f"warning: {source}, line {n}: {said}; skipped" for n, said in enumerate(DAMAGED.values(), 21)]
    assert [line for line in capsys.readouterr().err.split("\n") if "warning" in line] == expected


@pytest.mark.parametrize("line", DAMAGED)
def test_without_the_option_a_damaged_record_is_an_error_that_names_it(line: bytes, tmp_path: Path) -> None:
    source = written(tmp_path, b'{"text": "good", "title": ""}\n' + line + b"\n", "r.jsonl")
    hint = "save the file as UTF-8" if b"\xed" in line else "or set `skip_damaged_records: true` to skip it"
    with pytest.raises(RelmError, match=rf"r\.jsonl, line 2.*{hint}"):
        extracted(source, tmp_path / "out", title_key="title", **JSON)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "x"', ": not valid JSON"),
        (b'{"text": "\xff"}', ", byte 27: not valid UTF-8"),
        (b'{"text": 3}', ": text"),
    ],
)
def test_the_option_skips_no_other_fault(line: bytes, message: str, tmp_path: Path) -> None:
    source = written(tmp_path, b'{"text": "good"}\n' + line + b"\n", "r.jsonl")
    with pytest.raises(RelmError, match=f"line 2{message}"):
        extracted(source, tmp_path / "out", skip_damaged_records=True, **JSON)


def test_rows_and_objects_of_arrays_are_skipped_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["b\0", *map(str, range(20))]
    found = extracted(parquet(tmp_path, text=texts), tmp_path / "out", held_out_one_in=3, skip_damaged_records=True, **PARQUET)
    assert ([document.text for document in found.documents], found.skipped["damaged_records"]) == (texts[1:], 1)
    array = written(tmp_path, '[{"text": "a"}, {"text": "b\\udfff"}, {"text": "c"}]', "a.json")
    assert read(array, format="json_arrays", skip_damaged_records=True)[1] == "damaged_records"
    assert "r.parquet, row 1: text: character 1: a NUL, which is not text; skipped" in capsys.readouterr().err


def test_of_many_damaged_records_the_first_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path, b"\n".join([*good_lines(40), *[b"\0"] * 1000]), "r.jsonl")
    found = extracted(source, tmp_path / "out", held_out_one_in=5, skip_damaged_records=True, **JSON)
    assert "damaged records 1,000" in found.sentence
    said = capsys.readouterr().err
    assert said.count("; skipped\n") == 20
    assert "line 60: a NUL" in said
    assert "warning: r.jsonl has more damaged records, which are skipped and counted" in said


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "x", "id": None, "title": "t"}, "id: expected a text or a whole number, found None"),
        ({"text": "x", "id": True, "title": "t"}, "id: expected a text or a whole number, found True"),
        ({"text": "x", "id": 1.5, "title": "t"}, "id: expected a text or a whole number, found 1.5"),
        ({"text": "x", "id": 1, "title": 2}, "title: expected a text, found 2"),
        ({"text": "x", "id": 1}, "lacks the key 'title'"),
    ],
)
def test_ids_and_titles_are_checked(record: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=message):
        read(json_lines(tmp_path, record), id_key="id", title_key="title", **JSON)


NOT_UTF8 = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"body": ["x"], "n": [1]}), ": lacks the key 'text'; it has 'body', 'n'. Correct `text_key`"),
        (pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]), ": has the column 'text' twice"),
        (pa.table({"text": pa.array([b"x"], pa.binary())}), ", row 1: text: expected a text, found b'x'"),
        (pa.table({"text": NOT_UTF8}), ", rows 1 to 2: not valid UTF-8"),
        (pa.table({"text": pa.array([], pa.string())}), ": contains no documents; skipped: empty 1"),
    ],
    ids=["no column", "two columns", "another kind", "not UTF-8", "no rows"],
)
def test_a_table_without_a_column_of_texts_is_an_error(table: pa.Table, message: str, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(RelmError, match=rf"r\.parquet{message}"):
        extracted(tmp_path / "r.parquet", tmp_path / "out", **PARQUET)


def test_a_parquet_file_cut_or_damaged_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    whole = parquet(tmp_path, 10, text=[f"{n:080}" for n in range(100)]).read_bytes()
    middle = len(whole) // 3
    damaged = whole[:middle] + bytes(100) + whole[middle + 100 :]
    for name, bad in {"cut": whole[:-50], "half": whole[:middle], "empty": b"", "text": b"x" * 99, "damaged": damaged}.items():
        source = written(tmp_path, bad, f"{name}.parquet")
        with pytest.raises(
            RelmError, match=rf"{name}\.parquet: after row \d+: truncated, damaged or not Parquet \(.+\); download it again"
        ):
            extracted(source, tmp_path / "out", **PARQUET)
        assert list((tmp_path / "out").iterdir()) == []
