"""Read text files in UTF-8, plain or compressed, of any size, in blocks of whole lines.

Only LF and CRLF end a line; a byte-order mark at the beginning of the file is removed.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relm.corpus.decompression import read_decompressed
from relm.corpus.documents import LONGEST
from relm.errors import RelmError
from relm.formatting import format_bytes


class LineBlock(NamedTuple):
    """Some consecutive lines of a file, about a MiB."""

    path: Path
    content: bytes
    """Ends with LF, except perhaps in the file's last block."""
    first_line: int
    """The position of its first line, counted from 1."""
    first_byte: int
    """Its offset in the decompressed file."""


def read_line_blocks(path: Path) -> Iterator[LineBlock]:
    """Yield the lines of a file in order, in blocks."""
    waiting: list[bytes] = []
    line, byte = 1, 0
    for block in read_decompressed(path):
        cut = block.rfind(b"\n") + 1
        waiting.append(block[:cut] if cut else block)
        if cut:
            content = b"".join(waiting)
            yield LineBlock(path, content, line, byte)
            line, byte = line + content.count(b"\n"), byte + len(content)
            waiting = [block[cut:]]
        if sum(map(len, waiting)) > LONGEST:
            raise RelmError(
                f"{path}, line {line}: expected at most {format_bytes(LONGEST)} in a line; give a file of text lines"
            )
    if rest := b"".join(waiting):
        yield LineBlock(path, rest, line, byte)


def split_lines(block: LineBlock, takes_damaged: bool = False, or_else: str = "") -> list[tuple[int, str]]:
    """Return (position from 1, line without its end) for each line of a block.

    `takes_damaged` returns lines with halves of surrogate pairs and NULs too; `or_else` is a further remedy for the message.
    """
    try:
        text = block.content.decode(errors="surrogatepass" if takes_damaged else "strict")
    except UnicodeDecodeError as error:
        found = repr(block.content[error.start : error.start + 1])
        raise _no_text(block, error.start, f"not valid UTF-8 (found {found}); save the file as UTF-8") from None
    if not takes_damaged and (offset := block.content.find(b"\0")) >= 0:
        raise _no_text(block, offset, f"a NUL: not a text file, or one in UTF-16; save it as UTF-8{or_else}")
    if block.first_byte == 0:
        text = text.removeprefix(codecs.BOM_UTF8.decode())
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return list(enumerate(lines, block.first_line))


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (position from 1, line without its end) for each line; raise as `read_line_blocks` and `split_lines` do."""
    for block in read_line_blocks(path):
        yield from split_lines(block)


def _no_text(block: LineBlock, offset: int, fault: str) -> RelmError:
    line = block.first_line + block.content.count(b"\n", 0, offset)
    return RelmError(f"{block.path}, line {line}, byte {block.first_byte + offset}: {fault}")
