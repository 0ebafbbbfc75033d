"""The documents of all ranges of a file are those of the whole file, to the byte, for any number of ranges and workers."""

import bz2
import gzip
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_dumps import SAMPLE, articles, dataset, dump, page, written
from test_wikipedia_pieces import Found, collected, keep, packed_in_blocks, read_in_pieces

from relm.artifact import sidecar_of
from relm.corpus import decompression, dump_files
from relm.corpus.bzip2_blocks import find_blocks
from relm.corpus.documents import Skipped
from relm.corpus.extract import extract
from relm.corpus.file_range import FileRange, parse_range
from relm.corpus.ranges import join_ranges
from relm.corpus.wikipedia import Dump, Page
from relm.corpus.wikipedia_pieces import PiecedDump, read_piece
from relm.errors import RelmError
from relm.recipes.datasets import FORMATS

SPLITS = ("train", "held_out")


def read_in_ranges(path: Path, count: int, **options: bool) -> Found:
    """Return the entries of all ranges one after the other, and the first fault."""
    found: list[Page | Skipped] = []
    for index in range(count):
        pieced = PiecedDump(path, keep, part=FileRange(index, count), **options)
        joined = itertools.chain.from_iterable(pieced.join(read_piece(piece, keep)) for piece in pieced.cut())
        pages, fault = collected(itertools.chain(joined, pieced.finish()))
        found += pages
        if fault:
            return found, fault
    return found, ""


def outputs(folder: Path, name: str) -> dict[str, Path]:
    return {split: folder / f"{name}.{split}.jsonl" for split in SPLITS}


def contents(files: dict[str, Path]) -> list[bytes]:
    """Return the documents of both splits, and their sidecars but for the file's name."""
    sidecars = [json.loads(sidecar_of(path).read_bytes()) for path in files.values()]
    facts = [{key: value for key, value in sidecar.items() if key not in ("file", "facts_sha256")} for sidecar in sidecars]
    return [*(path.read_bytes() for path in files.values()), json.dumps(facts).encode()]


def extracted_in_ranges(path: Path, folder: Path, count: int, workers: int, **settings: Any) -> list[bytes]:
    parts = [outputs(folder, f"{number}-of-{count}") for number in range(count)]
    for index, part in enumerate(parts):
        extract(dataset(path.name, **settings), path, part, None, workers, FileRange(index, count))
    joined = outputs(folder, "joined")
    declared = FORMATS[settings.get("format", "mediawiki_xml")]
    sentence = join_ranges(
        {split: [part[split] for part in parts] for split in SPLITS}, joined, declared.ids_are_unique, declared.skipped
    )
    assert f"from {count} ranges" in sentence
    return contents(joined)


def extracted_whole(path: Path, folder: Path, **settings: Any) -> list[bytes]:
    extract(dataset(path.name, **settings), path, outputs(folder, "whole"), None, 1)
    return contents(outputs(folder, "whole"))


# --- dumps -----------------------------------------------------------------------------------------------------------------


def strange_dump() -> str:
    """Return a dump with copies of pages far apart, pages without text, and a page longer than several ranges."""
    pages = [page(f"Title {n}", f"Some text of number {n}. " * (n % 7), n) for n in range(120)]
    pages[40] = page("Long", "A long text. " * 3000, 40)
    pages[60:60] = [page("Copy", "Some other text.", 3), page("Nothing", "{{stub}}", 500), page("Talk:X", "x", 501, ns=1)]
    return dump(*pages, page("Copy", "A text.", 500), page("Nothing", "{{stub}}", 2), page("Copy", "Once more.", 118))


@pytest.mark.parametrize("count", [2, 3, 7, 64, 200])
@pytest.mark.parametrize("pack", [str.encode, lambda text: packed_in_blocks(text.encode(), 700)], ids=["plain", "bz2"])
def test_each_page_is_in_one_range(
    count: int, pack: Callable[[str], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, pack(strange_dump()))
    expected, _ = read_in_ranges(path, 1)
    assert len(expected) == 126
    for size in (90, 5000):
        monkeypatch.setattr(dump_files, "BLOCK", size)
        monkeypatch.setattr(decompression, "BLOCK", size)
        assert read_in_ranges(path, count) == (expected, "")


def test_any_number_of_ranges_of_any_dump_gives_the_same_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    for _ in range(60):
        content = dump(*(page(f"T {n}", "é" * chance.randrange(40), n) for n in range(chance.randrange(1, 12)))).encode()
        content = content[: chance.choice([len(content), chance.randrange(len(content) // 2, len(content))])]
        path = written(tmp_path, chance.choice([content, packed_in_blocks(content, chance.randrange(50, 300))]))
        monkeypatch.setattr(dump_files, "BLOCK", chance.choice([1, 30, 1000]))
        monkeypatch.setattr(dump_files, "BLOCKS", chance.choice([1, 2, 5]))
        expected, fault = read_in_ranges(path, 1, ends_mid_page=True)
        assert read_in_ranges(path, chance.randrange(2, 40), ends_mid_page=True) == (expected, fault)


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (2, 2), (7, 1), (64, 1)])
def test_joined_ranges_are_the_documents_of_the_whole_dump(
    count: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 1)
    path = written(tmp_path, packed_in_blocks(strange_dump().encode(), 900), "dump.xml.bz2")
    whole = extracted_whole(path, tmp_path, held_out_one_in=3)
    assert b'"doubled": 4' in whole[-1]
    assert extracted_in_ranges(path, tmp_path, count, workers, held_out_one_in=3) == whole


def test_the_sample_in_ranges(tmp_path: Path) -> None:
    whole = extracted_whole(SAMPLE, tmp_path, held_out_one_in=3)
    assert extracted_in_ranges(SAMPLE, tmp_path, 5, 1, held_out_one_in=3) == whole


@pytest.mark.parametrize("number", range(1, 16))
def test_a_damaged_block_is_skipped_in_ranges_as_in_the_whole(number: int, tmp_path: Path) -> None:
    packed = bytearray(packed_in_blocks(articles(90).encode(), 700))
    path = written(tmp_path, bytes(packed))
    block = list(find_blocks(path))[number]
    packed[(block.begin + block.end) // 16] ^= 16
    path.write_bytes(packed)
    whole = read_in_pieces(path, skip_damaged_blocks=True)
    assert Skipped("damaged_blocks") in whole[0]
    for count in (2, 5, 30):
        assert read_in_ranges(path, count, skip_damaged_blocks=True) == whole
    assert "cannot be decompressed" in read_in_ranges(path, 5)[1]


def test_a_damaged_block_inside_the_first_page_is_skipped_in_ranges_as_in_the_whole(tmp_path: Path) -> None:
    long = dump(page("Long", "A long text. " * 300, 0), *(page(f"T {n}", "A text.", n) for n in range(1, 30)))
    packed = bytearray(packed_in_blocks(long.encode(), 700))
    path = written(tmp_path, bytes(packed))
    block = list(find_blocks(path))[3]
    packed[(block.begin + block.end) // 16] ^= 16
    path.write_bytes(packed)
    whole = read_in_pieces(path, skip_damaged_blocks=True)
    assert len(whole[0]) == 30
    assert whole[1] == ""
    assert whole[0][0] == Skipped("damaged_blocks")
    for count in (2, 5, 30):
        assert read_in_ranges(path, count, skip_damaged_blocks=True) == whole
    assert "or set `skip_damaged_blocks: true`" in read_in_pieces(path)[1]


def test_a_damaged_header_is_an_error_that_skipping_does_not_remedy(tmp_path: Path) -> None:
    packed = bytearray(packed_in_blocks(articles(40).encode(), 700))
    packed[40] ^= 16
    path = written(tmp_path, bytes(packed))
    for _, fault in (read_in_pieces(path, skip_damaged_blocks=True), read_in_ranges(path, 3, skip_damaged_blocks=True)):
        assert "damaged before its first page: the block at byte 4 cannot be decompressed; download it again, since" in fault
        assert "skip_damaged_blocks" not in fault


@pytest.mark.parametrize("encoding", ["iso-8859-1", "windows-1252"])
def test_a_dump_in_another_encoding_that_it_declares(encoding: str, tmp_path: Path) -> None:
    pages = (page(f"T {n}", "A text. " * 40 + ("Ã© é" if n % 9 == 8 else ""), n) for n in range(60))
    content = f'<?xml version="1.0" encoding="{encoding}"?>' + dump(*pages)
    path = written(tmp_path, packed_in_blocks(content.encode(encoding), 2000))
    expected = (list(Dump(path)), "")
    assert "Ã© é" in expected[0][8].wikitext  # type: ignore[union-attr]
    assert read_in_pieces(path) == expected
    assert read_in_ranges(path, 3) == expected


def test_a_fault_names_the_range(tmp_path: Path) -> None:
    content = articles(40)
    at = content.index("Title 30''' is") + 3
    path = written(tmp_path, content[:at] + "<" + content[at:])
    assert "dump.xml, range 3 of 4: line 11, byte " in read_in_ranges(path, 4)[1]


def test_a_file_that_is_read_from_its_beginning_has_no_ranges(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(articles(40).encode()))
    with pytest.raises(RelmError, match=r"dump\.xml: range 1 of 2: a file compressed by gzip can only be read from its"):
        extract(dataset(), path, outputs(tmp_path, "x"), None, 1, FileRange(0, 2))


def test_a_truncated_dump_is_an_error_of_the_range_that_reaches_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, bz2.compress(articles(40).encode())[:-20])
    assert "truncated" in read_in_ranges(path, 3)[1]


# --- parquet ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5, 9, 40])
def test_ranges_of_row_groups(count: int, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"text": [f"text of row {n}" if n % 9 else "" for n in range(1000)]}), path, row_group_size=110)
    settings: dict[str, Any] = {"format": "parquet", "held_out_one_in": 4}
    assert extracted_in_ranges(path, tmp_path, count, 1, **settings) == extracted_whole(path, tmp_path, **settings)


# --- joining ---------------------------------------------------------------------------------------------------------------


def test_a_changed_range_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, articles(60))
    parts = [outputs(tmp_path, f"{number}-of-2") for number in range(2)]
    for index, part in enumerate(parts):
        extract(dataset(held_out_one_in=3), path, part, None, 1, FileRange(index, 2))
    with open(parts[1]["train"], "ab") as file:
        file.write(b"more")
    joined = outputs(tmp_path, "joined")
    with pytest.raises(RelmError, match=r"1-of-2\.train\.jsonl: .*its sidecar says"):
        join_ranges({split: [part[split] for part in parts] for split in SPLITS}, joined, True, ())
    assert not any(path.exists() for path in joined.values())


def test_ranges_without_a_document_of_a_split_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, articles(2))
    part = outputs(tmp_path, "part")
    extract(dataset(held_out_one_in=10_000), path, part, None, 1, FileRange(0, 1))
    joined = outputs(tmp_path, "joined")
    with pytest.raises(RelmError, match="the ranges have no document of this split"):
        join_ranges({split: [part[split]] for split in SPLITS}, joined, True, ())
    assert not any(path.exists() for path in joined.values())


def files_of_ranges(path: Path, name: str, count: int) -> list[dict[str, Path]]:
    """Extract all ranges of a dump, and return their files."""
    parts = [outputs(path.parent, f"{name}-{number}") for number in range(count)]
    for index, part in enumerate(parts):
        extract(dataset(path.name, held_out_one_in=3), path, part, None, 1, FileRange(index, count))
    return parts


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("a1 a0 a2", r"a-1\.train\.jsonl: has train documents of range 2 of 3, expected train documents of range 1 of 3; give"),
        ("a0 a2", r"a-0\.train\.jsonl: has train documents of range 1 of 3, expected train documents of range 1 of 2; give"),
        ("a0 a1 a1", r"a-1\.train\.jsonl: has train documents of range 2 of 3, expected train documents of range 3 of 3; give"),
        ("a0 b1 a2", r"b-1\.train\.jsonl: is a range of other\.xml with .*those before it are ranges of dump\.xml with"),
        ("w0", r"whole\.train\.jsonl: not the documents of a range; give files that `relm extract --range` wrote"),
    ],
)
def test_files_that_are_not_all_ranges_of_one_file_in_order_are_refused(chosen: str, message: str, tmp_path: Path) -> None:
    dumps = {"a": written(tmp_path, articles(60)), "b": written(tmp_path, articles(50), "other.xml")}
    files = {name: files_of_ranges(path, name, 3) for name, path in dumps.items()}
    extract(dataset("dump.xml", held_out_one_in=3), dumps["a"], outputs(tmp_path, "whole"), None, 1)
    files["w"] = [outputs(tmp_path, "whole")]
    parts = [files[name][int(number)] for name, number in chosen.split()]
    joined = outputs(tmp_path, "joined")
    with pytest.raises(RelmError, match=message):
        join_ranges({split: [part[split] for part in parts] for split in SPLITS}, joined, True, ())
    assert not any(path.exists() for path in joined.values())


def test_splits_that_are_exchanged_are_refused(tmp_path: Path) -> None:
    parts = files_of_ranges(written(tmp_path, articles(60)), "a", 2)
    exchanged = {"train": [part["held_out"] for part in parts], "held_out": [part["train"] for part in parts]}
    with pytest.raises(
        RelmError, match=r"a-0\.held_out\.jsonl: has held_out documents of range 1 of 2, expected train documents"
    ):
        join_ranges(exchanged, outputs(tmp_path, "joined"), True, ())


@pytest.mark.parametrize("text", ["0-of-3", "4-of-3", "3", "a-of-b", "1-of-", "-1-of-3", "1-of-3-of-4"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_range(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "json_lines"}, "ranges: belongs to format mediawiki_xml or parquet, found json_lines"),
        ({"folder": "texts"}, "ranges: belongs to files, found a folder or a hub dataset"),
    ],
)
def test_ranges_of_other_sources_are_a_mistake_in_the_recipe(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(ranges=4, **settings)
