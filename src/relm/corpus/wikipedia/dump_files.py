"""Read a dump's file in parts that processes can read independently."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from relm.corpus.decompression import find_compression, read_decompressed, refuse_damage
from relm.corpus.wikipedia.bzip2_blocks import TOGETHER, Block, decompress_blocks, find_blocks
from relm.progress import ProgressBar

# Blocks of bzip2 in a part, about 900 kB of XML each.
BLOCKS = TOGETHER

Content = bytes | tuple[Block, ...]
"""XML, or the blocks of a bzip2 file with it."""


def read_xml(path: Path, content: Content) -> bytes:
    """Return the XML of a part."""
    if isinstance(content, bytes):
        return content
    with open(path, "rb") as file:
        return decompress_blocks(file, content)


def read_contents(path: Path) -> Iterator[Content]:
    """Yield the content of a dump, plain or compressed by bzip2, gzip or xz, as its first bytes say.

    The first part is short, because only the header is read from it.
    """
    with refuse_damage(path):
        with open(path, "rb") as file:
            compression = find_compression(file.read(8))
        yield from _read_blocks(path) if compression == "bzip2" else read_decompressed(path)


def _read_blocks(path: Path) -> Iterator[tuple[Block, ...]]:
    blocks = find_blocks(path)
    with ProgressBar(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
        for size in itertools.chain([1], itertools.repeat(BLOCKS)):
            content = tuple(itertools.islice(blocks, size))
            if not content:
                return
            bar.update(content[-1].end // 8 - bar.n)
            yield content
