"""Find the blocks of a bzip2 file, and decompress each separately.

A block has at most 900,000 bytes before compression and begins, at any bit of the file, with 48 bits that never change, its
magic, so that several processes can decompress one file. Cut out and followed by the end of a stream, a block is a stream that
the standard library decompresses and checks by the block's CRC. The format is described at
https://github.com/dsnet/compress/blob/master/doc/bzip2-format.pdf.

If the environment was made with a C compiler, `bzip2_walks.c` decompresses sound blocks, several at a time and about twice as
fast; all other blocks, and every fault, are left to the standard library.

The bits of a magic may also occur inside a block, by chance once in 35 TB; so a block that cannot be decompressed is tried
together with its neighbours. The CRC over all blocks of a stream is not checked.
"""

import bz2
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from relm.corpus import compiled
from relm.errors import RelmError

BLOCK_MAGIC, END_MAGIC = 0x314159265359, 0x177245385090
MAGIC_BITS = 48
CRC_BITS = 32
HEADER = b"BZh9"  # of the highest level, which decompresses blocks of all levels
TOGETHER = 4  # blocks, as in bzip2_walks.c
WINDOW = 4 << 20  # bytes of the file to search for magics at once


class Block(NamedTuple):
    """A block by its place in the file, in bits."""

    begin: int
    end: int
    """The bit where the next block begins, or the stream ends."""
    before: int
    """The bit where the block before begins, in case ``begin`` is a magic by chance; for the first block ``begin``."""
    after: int
    """The next magic after ``end``, in case ``end`` is one by chance; for the last block ``end``."""

    @property
    def byte(self) -> int:
        """Return the byte of the file in which it begins."""
        return self.begin >> 3


class DamagedBlock(Exception):
    """A block that cannot be decompressed, or whose content differs from its CRC."""


class _Place(NamedTuple):
    """A magic that was found."""

    bit: int
    is_block: bool


# --- finding blocks --------------------------------------------------------------------------------------------------------


def find_blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a file in order; bytes after the last stream are ignored unless a block or header is there."""
    size = path.stat().st_size
    places = _find_places(path)
    before = begin = None
    end = next(places, None)
    if end is not None and end.bit != 8 * len(HEADER):
        raise RelmError(f"{path}: the compressed file is damaged: it begins without a block; download it again")
    while end is not None:
        after = next(places, None)
        if begin is not None and begin.is_block:
            yield Block(begin.bit, end.bit, before.bit if before else begin.bit, (after or end).bit)
            before = begin
        begin, end = end, after
    if begin is None or begin.is_block or begin.bit + MAGIC_BITS + CRC_BITS > 8 * size:
        raise RelmError(f"{path}: the compressed file is truncated after {size} bytes; download it again")
    if _ends_in_a_header(path, (begin.bit + MAGIC_BITS + CRC_BITS + 7) // 8):
        raise RelmError(f"{path}: the compressed file is truncated after {size} bytes; download it again")


def _ends_in_a_header(path: Path, end: int) -> bool:
    """Return whether a file ends within the header of a stream, or the magic after it, that begins at a byte."""
    with open(path, "rb") as file:
        file.seek(end)
        tail = file.read(len(HEADER) + MAGIC_BITS // 8)
    headers = (b"BZh%d" % level + magic.to_bytes(6, "big") for level in range(1, 10) for magic in (BLOCK_MAGIC, END_MAGIC))
    return bool(tail) and any(header.startswith(tail) for header in headers)


def _find_places(path: Path) -> Iterator[_Place]:
    """Yield the magics of a file in order."""
    overlap = MAGIC_BITS // 8
    with open(path, "rb") as file:
        first_byte, window = 0, b""
        while block := file.read(WINDOW):
            window += block
            # The next window has the whole of a magic that begins in the last bytes.
            searched = 8 * (len(window) - overlap)
            found = [
                _Place(8 * first_byte + bit, magic == BLOCK_MAGIC)
                for magic in (BLOCK_MAGIC, END_MAGIC)
                for bit in find_bits(window, magic)
                if bit < searched
            ]
            yield from sorted(found)
            kept = max(0, len(window) - overlap)
            first_byte, window = first_byte + kept, window[kept:]
        yield from sorted(
            _Place(8 * first_byte + bit, magic == BLOCK_MAGIC)
            for magic in (BLOCK_MAGIC, END_MAGIC)
            for bit in find_bits(window, magic)
        )


def find_bits(data: bytes, magic: int) -> list[int]:
    """Return where 48 bits occur in bytes, in bits, in no order.

    >>> find_bits(bytes.fromhex("00 18a09204f53120"), 0x314159265359) == []
    True
    >>> find_bits((0x314159265359 << 5).to_bytes(8, "big"), 0x314159265359)
    [11]
    """
    found = []
    for shift in range(8):
        # The magic's ends share bytes with other bits: search for the bytes between, then compare the rest.
        skipped = bool(shift)
        whole = (magic << (8 - shift) % 8).to_bytes(6 + skipped, "big")
        middle = whole[1:6] if skipped else whole
        at = data.find(middle)
        while at >= 0:
            start = at - skipped
            bits = int.from_bytes(data[max(start, 0) : start + len(whole)], "big") >> (8 - shift) % 8
            if start >= 0 and start + len(whole) <= len(data) and bits & ((1 << MAGIC_BITS) - 1) == magic:
                found.append(8 * start + shift)
            at = data.find(middle, at + 1)
    return found


# --- decompressing blocks --------------------------------------------------------------------------------------------------


def decompress_blocks(file: IO[bytes], blocks: Sequence[Block]) -> bytes:
    """Return the content of consecutive blocks of a file that is open for reading."""
    return b"".join(_decompress_few(file, blocks[first : first + TOGETHER]) for first in range(0, len(blocks), TOGETHER))


def _decompress_few(file: IO[bytes], blocks: Sequence[Block]) -> bytes:
    if compiled.decompress_together:
        begin = blocks[0].begin >> 3
        size = ((blocks[-1].end + 7) >> 3) - begin
        file.seek(begin)
        data = file.read(size)
        bounds = [bit - 8 * begin for block in blocks for bit in (block.begin, block.end)]
        # The file may have been truncated since its blocks were found.
        if len(data) == size and (content := compiled.decompress_together(data, bounds)) is not None:
            return content
    return b"".join(decompress_block(file, block) for block in blocks)


def decompress_block(file: IO[bytes], block: Block) -> bytes:
    """Return the content of a block, empty if its magic occurs by chance inside the block before."""
    content = _try_to_decompress(file, block.begin, block.end)
    if content is None and block.before < block.begin and _try_to_decompress(file, block.before, block.end) is not None:
        return b""
    if content is None and block.after > block.end:
        content = _try_to_decompress(file, block.begin, block.after)
    if content is None:
        raise DamagedBlock(f"the block at byte {block.byte} cannot be decompressed")
    return content


def _try_to_decompress(file: IO[bytes], begin: int, end: int) -> bytes | None:
    """Return the content of a block between two bits of the file; None: they do not enclose one sound block."""
    decompressor = bz2.BZ2Decompressor()
    try:
        content = decompressor.decompress(_make_stream(file, begin, end))
    except (OSError, ValueError):
        return None
    return content if decompressor.eof and not decompressor.unused_data else None


def _make_stream(file: IO[bytes], begin: int, end: int) -> bytes:
    """Return a stream of one block, with the block's CRC."""
    file.seek(begin >> 3)
    size = ((end + 7) >> 3) - (begin >> 3)
    bits = int.from_bytes(file.read(size), "big") >> -end % 8
    length = end - begin
    bits &= (1 << length) - 1
    crc = bits >> max(0, length - MAGIC_BITS - CRC_BITS) & ((1 << CRC_BITS) - 1)
    length += MAGIC_BITS + CRC_BITS
    bits = (bits << MAGIC_BITS | END_MAGIC) << CRC_BITS | crc
    padding = -length % 8
    return HEADER + (bits << padding).to_bytes((length + padding) >> 3, "big")
