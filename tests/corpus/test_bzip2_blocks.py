"""Blocks of bzip2: found at any bit, decompressed one by one to the content of the file, or rejected."""

import bz2
import random
from pathlib import Path

import pytest

from relm.corpus.wikipedia import bzip2_blocks
from relm.corpus.wikipedia.bzip2_blocks import Block, decompress_block, find_blocks
from relm.errors import RelmError

CHANCE = random.Random(3)
CONTENTS = {
    "nothing": b"",
    "a byte": b"x",
    "noise": CHANCE.randbytes(250_000),
    "runs": b"ab" * 600_000 + b"c" * 5_000_000,
    "words": b" ".join(CHANCE.choice([b"river", b"house", b"of", b"the"]) for _ in range(90_000)),
}


def read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return b"".join(decompress_block(file, block) for block in find_blocks(path))


def written(folder: Path, content: bytes) -> Path:
    (folder / "file.bz2").write_bytes(content)
    return folder / "file.bz2"


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("level", [1, 9])
def test_the_blocks_are_the_content_of_the_file(content: bytes, level: int, tmp_path: Path) -> None:
    packed = bz2.compress(content, level)
    for streams in ([packed], [packed] * 3, [packed, bz2.compress(b""), packed], [packed, b"something else"]):
        path = written(tmp_path, b"".join(streams))
        assert read(path) == bz2.decompress(path.read_bytes())


@pytest.mark.parametrize("window", [7, 64, 1000])
def test_blocks_are_found_wherever_the_file_is_cut_in_reading(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, bz2.compress(CONTENTS["words"] * 2, 1) * 2)
    expected = list(find_blocks(path))
    assert len(expected) == 2 * len({block.begin for block in expected}) / 2 >= 8
    monkeypatch.setattr(bzip2_blocks, "WINDOW", window)
    assert list(find_blocks(path)) == expected


def test_a_block_with_the_bits_of_a_magic_inside_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path, bz2.compress(CONTENTS["noise"], 1))
    first, second, third = find_blocks(path)
    chance = second.begin + 4321  # as if the bits of a magic were here
    with open(path, "rb") as file:
        found = [
            decompress_block(file, block)
            for block in (
                Block(first.begin, second.begin, first.begin, chance),
                Block(second.begin, chance, first.begin, third.begin),
                Block(chance, third.begin, second.begin, third.end),
                Block(third.begin, third.end, chance, third.end),
            )
        ]
    assert found[2] == b""
    assert b"".join(found) == CONTENTS["noise"]


@pytest.mark.parametrize("length", [-1, -5, -15, -3000, 20, 12, 4, 3])
def test_a_truncated_file_is_an_error_after_its_whole_blocks(length: int, tmp_path: Path) -> None:
    path = written(tmp_path, bz2.compress(CONTENTS["noise"], 1)[:length])
    found = []
    with pytest.raises(RelmError, match=r"file\.bz2: the compressed file is truncated after \d+ bytes"):
        found.extend(find_blocks(path))
    assert len(found) == (2 if length < 0 else 0) or (length > -15 and len(found) == 3)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 9])
def test_a_file_truncated_in_the_header_of_a_later_stream_is_an_error(length: int, tmp_path: Path) -> None:
    path = written(tmp_path, bz2.compress(b"x") + bz2.compress(b"y", 5)[:length])
    with pytest.raises(RelmError, match=r"file\.bz2: the compressed file is truncated after \d+ bytes"):
        read(path)


def test_a_file_that_does_not_begin_with_a_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"damaged: it begins without a block"):
        read(written(tmp_path, b"BZh9 something " + bz2.compress(b"x")))
