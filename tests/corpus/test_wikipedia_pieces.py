"""A dump cut into pieces gives the pages and faults that one parser gives that reads it from its beginning to its end."""

import bz2
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relm.corpus import decompression
from relm.corpus.documents import Skipped
from relm.corpus.extract import extract
from relm.corpus.wikipedia import dump_files
from relm.corpus.wikipedia.bzip2_blocks import find_blocks
from relm.corpus.wikipedia.dump import Page, Wiki
from relm.corpus.wikipedia.pieces import PiecedDump, read_piece
from relm.errors import RelmError
from small_dumps import SAMPLE, Dump, articles, dataset, dump, page, skip_doubled, written

Found = tuple[list[Page | Skipped], str]


def keep(entry: Page | Skipped, wiki: Wiki) -> Page | Skipped:
    return entry


def collected(entries: Iterator[Page | Skipped]) -> Found:
    """Return the entries, and the fault after them."""
    found: list[Page | Skipped] = []
    try:
        found.extend(entries)
    except RelmError as error:
        return found, re.sub(r"its XML: .*|found b.*", "", str(error))  # what is shown of it depends on the pieces
    return found, ""


def read_in_pieces(path: Path, **options: bool) -> Found:

    def entries() -> Iterator[Page | Skipped]:
        pieced = PiecedDump(path, keep, **options)
        yield from itertools.chain.from_iterable(pieced.join(read_piece(piece, keep)) for piece in pieced.cut())
        yield from pieced.finish()

    return collected(skip_doubled(entries()))


def packed_in_blocks(content: bytes, size: int) -> bytes:
    """Return bzip2 with a block for so many bytes, each in a stream of its own."""
    return b"".join(bz2.compress(content[at : at + size]) for at in range(0, len(content), size))


# --- any cut ---------------------------------------------------------------------------------------------------------------

# What stands between two pages or in them, also what no wiki writes.
ODD = [
    "<!-- a comment -->", "<!-- <page> </page> -->", "<!--", "-->", "<![CDATA[ </page> ]]>", "</page>", "<page>", "</page >",
    "<a>", "</a>", "<x><y/></x>", "&nbsp;", "&#233;", "\r\n", "\x01", "]]>", "\n\n", "é", "<?p </page> ?>",
    "</mediawiki>", "\ud800",
]  # fmt: skip


def odd_dump(chance: random.Random) -> bytes:
    """Return a dump in which something unusual stands in some places."""
    ids = [chance.randrange(9) if chance.random() < 0.2 else number for number in range(chance.randrange(8))]
    content = dump(*(page(f"Title {n}", "ab c" * chance.randrange(30), n, chance.choice([0, 0, 1])) for n in ids))
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        at = chance.randrange(len(content))
        if chance.random() < 0.7:
            at = content.rfind(">", 0, at) + 1
        content = content[:at] + chance.choice(ODD) + content[at:]
    if chance.random() < 0.1:
        content = content[: chance.randrange(len(content))]
    return content.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("seed", range(6))
def test_any_cut_of_any_xml_gives_the_same_pages_and_faults(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        content, ends_mid_page = odd_dump(chance), chance.random() < 0.3
        size = chance.choice([1, 7, 50, 200, 1000, 1 << 20])
        plain = written(tmp_path, content)
        monkeypatch.setattr(decompression, "BLOCK", 1 << 20)
        expected = collected(iter(Dump(plain, ends_mid_page)))
        monkeypatch.setattr(decompression, "BLOCK", size)
        assert read_in_pieces(plain, ends_mid_page=ends_mid_page) == expected
        if size > 40:
            monkeypatch.setattr(dump_files, "BLOCKS", chance.choice([1, 2, 5]))
            packed = written(tmp_path, packed_in_blocks(content, size))
            assert read_in_pieces(packed, ends_mid_page=ends_mid_page) == expected


def test_most_pages_are_read_by_those_who_read_pieces(tmp_path: Path) -> None:
    path = written(tmp_path, packed_in_blocks(articles(200).encode(), 2500))
    reads = [read_piece(piece, keep) for piece in PiecedDump(path, keep).cut()]
    assert sum(len(read.pages) for read in reads) > 150
    assert len(reads) > 5


def test_the_sample_is_the_same_in_pieces() -> None:
    assert read_in_pieces(SAMPLE) == (list(Dump(SAMPLE)), "")


# --- damaged blocks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[int], Path]:
    """Return a function that writes a dump of 300 pages with the block of a number damaged, some 20 pages."""

    def write(number: int) -> Path:
        packed = bytearray(packed_in_blocks(articles(300).encode(), 6000))
        blocks = list(find_blocks(written(tmp_path, bytes(packed))))
        packed[(blocks[number].begin + blocks[number].end) // 16] ^= 16
        return written(tmp_path, bytes(packed))

    return write


@pytest.mark.parametrize("number", [1, 2, 5, -2])
def test_a_damaged_block_is_an_error_that_names_its_byte(number: int, damaged: Callable[[int], Path]) -> None:
    path = damaged(number)
    byte = list(find_blocks(path))[number].byte
    found, fault = read_in_pieces(path)
    assert f"dump.xml: the compressed file is damaged: the block at byte {byte} cannot be decompressed" in fault
    assert "skip_damaged_blocks" in fault
    assert found == list(Dump(written(path.parent, articles(300))))[: len(found)]


@pytest.mark.parametrize("number", [1, 2, 5, -2, -1])
def test_a_damaged_block_is_skipped_by_option_with_the_pages_in_it(number: int, damaged: Callable[[int], Path]) -> None:
    found, fault = read_in_pieces(damaged(number), skip_damaged_blocks=True)
    assert fault == ""
    lost = found.index(Skipped("damaged_blocks"))
    titles = [entry.title for entry in found if isinstance(entry, Page)]
    expected = [f"Title {n}" for n in range(300)]
    rest = titles[lost:]
    assert len(found) == len(titles) + 1
    assert titles[:lost] == expected[:lost]
    assert rest == expected[300 - len(rest) :]
    content = articles(300)
    cut = (number % (1 + len(content) // 6000)) * 6000  # the pages that are whole on either side of the block
    assert lost == content[:cut].count("</page>")
    assert len(rest) == content[cut + 6000 :].count("<page>")


def test_the_block_of_the_header_cannot_be_skipped(damaged: Callable[[int], Path]) -> None:
    assert "the compressed file is damaged" in read_in_pieces(damaged(0), skip_damaged_blocks=True)[1]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_skipped_blocks_are_counted_and_the_documents_the_same_for_any_workers(
    workers: int,
    damaged: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 1)
    path = damaged(4)
    outputs = {split: tmp_path / f"{split}.jsonl" for split in ("train", "held_out")}
    sentence = extract(dataset(skip_damaged_blocks=True, held_out_one_in=2), path, outputs, None, workers)
    assert "damaged blocks 1" in sentence
    assert f"warning: {path}: the block at byte" in capsys.readouterr().err
    documents = [json.loads(line)["title"] for path in outputs.values() for line in path.read_text().splitlines()]
    entries, _ = read_in_pieces(path, skip_damaged_blocks=True)
    assert sorted(documents) == sorted(entry.title for entry in entries if isinstance(entry, Page))
