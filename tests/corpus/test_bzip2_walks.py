"""The compiled decompressor of bzip2 gives the standard library's bytes, or leaves the block to it."""

import bz2
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from sanitized import run_sanitized

from relm.corpus import compiled
from relm.corpus.wikipedia import bzip2_blocks
from relm.corpus.wikipedia.bzip2_blocks import Block, DamagedBlock, decompress_block, decompress_blocks, find_blocks
from small_project import CHECKOUT

SOURCE = CHECKOUT / "src" / "relm" / "corpus" / "bzip2_walks.c"
CHANCE = random.Random(11)

pytestmark = pytest.mark.skipif(
    compiled.decompress_together is None, reason="no C compiler was there when the environment was made"
)


def made_of(words: list[bytes], size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        content += CHANCE.choice(words)
    return bytes(content[:size])


CONTENTS = {
    "a byte": b"x",
    "two bytes": b"xy",
    "one byte again and again": b"\0" * 900_000,
    "noise": CHANCE.randbytes(400_000),
    "words": made_of([b"river ", b"of ", b"house", b"\n\n", b"==", b"    ", "ā".encode()], 900_000),
    "runs of 3 to 260": made_of([bytes([byte]) * size for byte in b"abc" for size in (3, 4, 5, 258, 259, 260)], 300_000),
    "all pairs": b"".join(bytes([one, two]) for one in range(256) for two in range(256)) * 6,
    "a period": b"ab" * 700_000,
}


def alone(path: Path, blocks: list[Block]) -> list[bytes]:
    with open(path, "rb") as file:
        return [decompress_block(file, block) for block in blocks]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The blocks that are left to the standard library."""
    found: list[Block] = []

    def counted(file: object, block: Block, ask: Callable[..., bytes] = decompress_block) -> bytes:
        found.append(block)
        return ask(file, block)

    monkeypatch.setattr(bzip2_blocks, "decompress_block", counted)
    return found


@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("name", CONTENTS)
def test_sound_blocks_are_decompressed_in_any_company(name: str, level: int, tmp_path: Path, left: list[Block]) -> None:
    path = tmp_path / "file.bz2"
    path.write_bytes(bz2.compress(CONTENTS[name], level))
    blocks = list(find_blocks(path))
    expected = alone(path, blocks)
    assert b"".join(expected) == CONTENTS[name]
    with open(path, "rb") as file:
        for count in (1, 2, 3, 4, 7):
            for first in range(0, min(len(blocks), 8), count):
                assert decompress_blocks(file, blocks[first : first + count]) == b"".join(expected[first : first + count])
    assert not left or name == "one byte again and again"


def test_content_much_larger_than_a_block_is_left_to_the_library(tmp_path: Path, left: list[Block]) -> None:
    path = tmp_path / "file.bz2"
    path.write_bytes(bz2.compress(b"c" * 40_000_000))
    (block,) = find_blocks(path)
    with open(path, "rb") as file:
        assert decompress_blocks(file, [block]) == b"c" * 40_000_000
    assert left == [block]


def test_whatever_is_damaged_is_refused_as_by_the_library(tmp_path: Path) -> None:
    """Change bits and bytes at random places, also of the bounds: the outcome is that of only the standard library."""
    whole = bz2.compress(CONTENTS["words"][:700_000], 1)
    path = tmp_path / "file.bz2"
    path.write_bytes(whole)
    blocks = list(find_blocks(path))
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(CHANCE.choice([1, 1, 1, 4])):
            damaged[CHANCE.randrange(4, len(damaged))] ^= 1 << CHANCE.randrange(8)
        path.write_bytes(damaged)
        first = CHANCE.randrange(len(blocks))
        some = blocks[first : first + 3]
        if CHANCE.random() < 0.3:
            some[-1] = some[-1]._replace(end=some[-1].end + CHANCE.choice([-8, -1, 1, 8]))
        outcomes: list[bytes | None] = []
        with open(path, "rb") as file:
            for decompress in (lambda: b"".join(alone(path, some)), lambda: decompress_blocks(file, some)):  # noqa: B023
                try:
                    outcomes.append(decompress())
                except DamagedBlock:
                    outcomes.append(None)
        assert outcomes[0] == outcomes[1]


def test_a_run_without_its_number_is_refused_as_by_the_library() -> None:
    """A block of four equal bytes, after which the number of more is missing, with the CRC of the four."""
    sound = f"{int.from_bytes(bz2.compress(b'aaaa'), 'big'):b}".zfill(8 * len(bz2.compress(b"aaaa")))
    crc, end = sound[80:112], f"{0x177245385090:048b}"
    tables = f"{2:03b}{1:015b}0" + 2 * f"{2:05b}000"  # three symbols, each of two bits
    block = sound[32:80] + crc + f"0{0:024b}{1 << 9:016b}{1 << 14:016b}" + tables + "010010"  # 2 + 2 rows, the end
    bits = sound[:32] + block + end + crc
    stream = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    with pytest.raises(OSError, match="Invalid data stream"):
        bz2.decompress(stream)
    assert compiled.decompress_together
    assert compiled.decompress_together(stream, [32, 32 + len(block)]) is None


def test_a_file_that_was_truncated_since_its_blocks_were_found_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file.bz2"
    path.write_bytes(bz2.compress(CONTENTS["words"], 1))
    blocks = list(find_blocks(path))
    path.write_bytes(path.read_bytes()[: blocks[2].byte + 50])
    with open(path, "rb") as file, pytest.raises(DamagedBlock):
        decompress_blocks(file, blocks[1:4])


FUZZ = """
import random, sys
from relm_bzip2_walks import decompress
sys.path.insert(0, sys.argv[2])
from relm.corpus.wikipedia.bzip2_blocks import find_blocks
from pathlib import Path
path = Path(sys.argv[1])
whole, chance = path.read_bytes(), random.Random(5)
blocks = list(find_blocks(path))
for round in range(int(sys.argv[3])):
    damaged = bytearray(whole)
    head = chance.random() < 0.7  # where the tables are
    for _ in range(chance.choice([1, 2, 8, 60])):
        block = chance.choice(blocks)
        place = (block.begin >> 3) + chance.randrange(300) if head else chance.randrange(len(damaged))
        damaged[min(place, len(damaged) - 1)] = chance.randrange(256)
    for block in blocks:
        decompress(bytes(damaged[: len(damaged) - chance.choice([0, 0, 5])]) + b"-" * 5, [block.begin, block.end])
for bounds in ([], [0], [5, 4], [0, 10**9], [0, 8] * 5, ["a", 2], [-1, 2], None):
    try:
        decompress(whole, bounds)
    except (ValueError, TypeError, OverflowError):
        continue
    sys.exit(f"{bounds}: taken")
print("sound")
"""


def test_no_content_makes_it_read_or_write_outside_its_memory(tmp_path: Path) -> None:
    """Thousands of damaged blocks, with the compiler's checks of addresses and of undefined behaviour."""
    path = tmp_path / "file.bz2"
    path.write_bytes(bz2.compress(CONTENTS["words"][:30_000] + CONTENTS["noise"][:20_000], 1))
    run_sanitized(SOURCE, FUZZ, tmp_path, str(path), str(CHECKOUT / "src"), "150")
