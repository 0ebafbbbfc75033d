"""Text files read as lines, in blocks of whole lines: plain or compressed, of any size, and UTF-8 or an error.

Lines end with LF or CRLF; a byte-order mark at the beginning of the file is no part of the first. No other character ends a
line.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relm.corpus.documents import LONGEST
from relm.corpus.wikipedia import decompressed_blocks
from relm.errors import RelmError
from relm.formatting import format_bytes


class LineBlock(NamedTuple):
    """Some consecutive lines of a file, about a MiB."""

    path: Path
    content: bytes
    """All but the file's last block end with LF."""
    first_line: int
    """The number of its first line, counted from 1."""
    first_byte: int
    """Where it begins in the (decompressed) file."""


def line_blocks(path: Path) -> Iterator[LineBlock]:
    """The lines of a file, in order.

    Raises:
        RelmError: the file is absent, cut or damaged, or has a line longer than any document may be.
    """
    waiting: list[bytes] = []
    line, byte = 1, 0
    for block in decompressed_blocks(path):
        cut = block.rfind(b"\n") + 1
        waiting.append(block[:cut] if cut else block)
        if cut:
            content = b"".join(waiting)
            yield LineBlock(path, content, line, byte)
            line, byte = line + content.count(b"\n"), byte + len(content)
            waiting = [block[cut:]]
        if sum(map(len, waiting)) > LONGEST:
            raise RelmError(f"{path}, line {line}: longer than {format_bytes(LONGEST)}: is this file made of lines of text?")
    if rest := b"".join(waiting):
        yield LineBlock(path, rest, line, byte)


def lines_of(block: LineBlock) -> list[tuple[int, str]]:
    """(number, line without its end) of a block.

    Raises:
        RelmError: the text is not UTF-8 or has a NUL; names the file, line and byte.
    """
    try:
        text = block.content.decode()
    except UnicodeDecodeError as error:
        found = repr(block.content[error.start : error.start + 1])
        raise _no_text(block, error.start, f"not valid UTF-8 (found {found}); save the file as UTF-8") from None
    if (place := block.content.find(b"\0")) >= 0:
        raise _no_text(block, place, "a NUL: not a file of text, or one in UTF-16; save it as UTF-8")
    if block.first_byte == 0:
        text = text.removeprefix(codecs.BOM_UTF8.decode())
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return list(enumerate(lines, block.first_line))


def lines_in(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line without its end) of a file; raises as `line_blocks` and `lines_of` do."""
    for block in line_blocks(path):
        yield from lines_of(block)


def _no_text(block: LineBlock, place: int, what: str) -> RelmError:
    line = block.first_line + block.content.count(b"\n", 0, place)
    return RelmError(f"{block.path}, line {line}, byte {block.first_byte + place}: {what}")
