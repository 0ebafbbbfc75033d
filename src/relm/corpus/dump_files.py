"""The content of a dump's file, or of a range of it, in parts that can be read independently of each other."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from relm.corpus.bzip2_blocks import HEADER, TOGETHER, Block, decompress_blocks, find_blocks
from relm.corpus.decompression import BLOCK, find_compression, read_decompressed, refuse_damage
from relm.corpus.file_range import FileRange
from relm.errors import RelmError
from relm.progress import ProgressBar

# Blocks of bzip2 in a part, some 900 kB of XML each.
BLOCKS = TOGETHER

Content = bytes | tuple[Block, ...]
"""XML, or the blocks of a bzip2 file that have it."""


def read_xml(path: Path, content: Content) -> bytes:
    """Return the XML of a part."""
    if isinstance(content, bytes):
        return content
    with open(path, "rb") as file:
        return decompress_blocks(file, content)


class DumpFile:
    """A dump's file, plain or compressed by bzip2, gzip or xz, recognised by its first bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def contents(self, part: FileRange) -> Iterator[Content]:
        """Yield the content that begins in a range; the first part is short, since the header is read from it alone."""
        with refuse_damage(self.path):
            compression = self._find_compression()
            if compression == "bzip2":
                yield from self._read_blocks(part)
            elif part.count == 1:
                yield from read_decompressed(self.path)
            elif compression is None:
                yield from self._read_plain(*part.bounds(self.path.stat().st_size))
            else:
                raise RelmError(
                    f"{self.path}: {part}: a file compressed by {compression} can only be read from its beginning; set "
                    "`ranges: 1` in the dataset's file, or leave out --range"
                )

    def contents_after(self, part: FileRange) -> Iterator[Content]:
        """Yield the content after a range, to the end of the file."""
        if part.is_last:
            return
        with refuse_damage(self.path):
            if self._find_compression() == "bzip2":
                _, end = self._bits(part)
                yield from ((block,) for block in find_blocks(self.path, end))
            else:
                size = self.path.stat().st_size
                yield from self._read_plain(part.bounds(size)[1], size)

    def _find_compression(self) -> str | None:
        with open(self.path, "rb") as file:
            return find_compression(file.read(8))

    def _bits(self, part: FileRange) -> tuple[int, int]:
        """Return the bits in which a range's blocks begin. The first block is in the first range, however short that is."""
        begin, end = part.bounds(8 * self.path.stat().st_size)
        after_first = 8 * len(HEADER) + 1
        return max(begin, after_first) if part.index else 0, max(end, after_first)

    def _read_blocks(self, part: FileRange) -> Iterator[tuple[Block, ...]]:
        begin, end = self._bits(part)
        blocks = itertools.takewhile(lambda block: block.begin < end, find_blocks(self.path, begin))
        total = (end - begin) // 8
        with ProgressBar(total=total, desc=self.path.name, unit="B", unit_scale=True, disable=None) as bar:
            for size in itertools.chain([1], itertools.repeat(BLOCKS)):
                content = tuple(itertools.islice(blocks, size))
                if not content:
                    return
                bar.update((content[-1].end - begin) // 8 - bar.n)
                yield content

    def _read_plain(self, begin: int, end: int) -> Iterator[bytes]:
        bar = ProgressBar(total=end - begin, desc=self.path.name, unit="B", unit_scale=True, disable=None)
        with open(self.path, "rb") as file, bar:
            file.seek(begin)
            while block := file.read(min(BLOCK, end - file.tell())):
                bar.update(len(block))
                yield block
