"""A dump cut into pieces gives the pages and faults that one parser gives that reads it from its beginning to its end."""

import bz2
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from relm.corpus import decompression
from relm.corpus.documents import Skipped
from relm.corpus.wikipedia import dump_files
from relm.corpus.wikipedia.bzip2_blocks import find_blocks
from relm.corpus.wikipedia.dump import Page, Wiki
from relm.corpus.wikipedia.pieces import PiecedDump, read_piece
from relm.errors import RelmError
from small_dumps import SAMPLE, Dump, articles, dump, page, skip_doubled, written

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
    """Return bzip2 with a block for each `size` bytes, each in its own stream."""
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


@pytest.mark.parametrize("number", [0, 1, 2, 5, -2])
def test_a_damaged_block_is_an_error_that_names_its_byte(number: int, tmp_path: Path) -> None:
    packed = bytearray(packed_in_blocks(articles(300).encode(), 6000))
    block = list(find_blocks(written(tmp_path, bytes(packed))))[number]
    packed[(block.begin + block.end) // 16] ^= 16
    found, fault = read_in_pieces(written(tmp_path, bytes(packed)))
    assert f"dump.xml: the compressed file is damaged: the block at byte {block.byte} cannot be decompressed" in fault
    assert found == list(Dump(written(tmp_path, articles(300))))[: len(found)]
