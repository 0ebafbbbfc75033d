"""Read the texts of extracted documents, for tokenizers and examples."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np

from relm.artifact import checked_sidecar, sha256_of, sidecar_of
from relm.corpus.documents import parse_document
from relm.corpus.plain_lines import read_plain_texts
from relm.corpus.utf8_texts import Utf8Texts
from relm.errors import RelmError

Result = TypeVar("Result")

# Bytes of documents in one task of a worker, about 20 ms of work.
CHUNK = 2**20
# Bytes at the end of a chunk in which its last newline is searched first.
CHUNK_END = 2**16


class Lines(NamedTuple):
    """Consecutive lines of a documents file."""

    path: Path
    first: int
    """Number of the first line, counted from 1; 0: unknown, and counted only for a message."""
    start: int
    """Offset of the first byte in the file."""
    size: int

    def texts(self) -> list[str]:
        """Return the texts of these lines."""
        return [text.decode() for text in self.utf8_texts().texts]

    def utf8_texts(self) -> Utf8Texts:
        """Return the texts of these lines, in UTF-8."""
        if (plain := read_plain_texts(self._content())) is not None:
            return plain
        try:
            texts = list(read_document_texts(self.lines, self.path, self.first))
        except RelmError:
            if self.first:
                raise
            texts = list(read_document_texts(self.lines, self.path, _line_at(self.path, self.start)))
        return Utf8Texts.of([text.encode() for text in texts])

    @property
    def lines(self) -> list[bytes]:
        """Return the bytes of each line, read from the file."""
        return io.BytesIO(self._content()).readlines()

    def _content(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)


def checked_documents(documents: Path) -> tuple[str, bool]:
    """Compare a file with its sidecar, if any; return its sha256, and True if the sidecar counts zero documents."""
    require_documents(documents)
    if sidecar_of(documents).exists():
        sidecar = checked_sidecar(documents)
        return sidecar["sha256"], sidecar.get("documents") == 0
    return sha256_of(documents), False


def require_documents(documents: Path) -> None:
    """Raise RelmError unless the file exists."""
    if not documents.exists():
        raise RelmError(f"{documents}: no such file; extract the documents first")


def chunks_of(file: IO[bytes], numbered: bool = True) -> Iterator[Lines]:
    """Yield the lines of an opened documents file in chunks of about `CHUNK` bytes, or of one longer line.

    This only finds the offsets of lines; the workers read them. With `numbered=False` `Lines.first` is 0, and of the file only
    the ends of chunks are read.
    """
    first, start = int(numbered), 0
    while size := _size_of_lines(file, start) or _line_size(file, start):
        yield Lines(Path(file.name), first, start, size)
        if numbered:  # a chunk without a newline is the last line, and a longer one than CHUNK is one line
            first += (_count_newlines(os.pread(file.fileno(), size, start)) if size <= CHUNK else 0) or 1
        start += size


def _size_of_lines(file: IO[bytes], start: int) -> int:
    """Return the size of the whole lines in the `CHUNK` bytes after an offset; 0 if no line ends there."""
    stop = start + CHUNK
    while stop > start:
        begin = max(start, stop - CHUNK_END)
        if end := os.pread(file.fileno(), stop - begin, begin).rfind(b"\n") + 1:
            return begin + end - start
        stop = begin
    return 0


def _line_at(path: Path, offset: int) -> int:
    """Return the number of the line, counted from 1, at an offset in a file."""
    number = 1
    with open(path, "rb") as file:
        while offset > 0 and (block := file.read(min(CHUNK, offset))):
            number, offset = number + _count_newlines(block), offset - len(block)
    return number


def _count_newlines(block: bytes) -> int:
    """Return ``block.count(b"\\n")``, several times faster where newlines are rare."""
    return int(np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")))


def applied(function: Callable[[Lines], Result], lines: Lines) -> tuple[Lines, Result]:
    """Return the lines and the function's result for them; workers call this."""
    return lines, function(lines)


def _line_size(file: IO[bytes], start: int) -> int:
    """Return the length of the line that begins at an offset, its newline included; 0 at the end of the file."""
    size = 0
    file.seek(start)
    while block := file.read(CHUNK):
        end = block.find(b"\n") + 1
        size += end or len(block)
        if end:
            break
    return size


def counts_of(texts: Sequence[str]) -> tuple[int, int]:
    """Return the words (runs of non-space characters, as in `str.split`) and bytes in UTF-8 of all texts together."""
    return Utf8Texts.of([text.encode() for text in texts]).count()


def read_document_texts(lines: Iterable[bytes], path: Path, first_line: int = 1) -> Iterator[str]:
    """Yield the text of each line of `path`; `lines` begin at line `first_line`."""
    for number, line in zip(count(first_line), lines, strict=False):
        yield parse_document(line, f"{path}, line {number}").text


def read_first_texts(documents: list[Path], limit: int) -> Iterator[str]:
    """Yield texts of several files in order up to `limit` bytes of UTF-8; the last one is truncated between characters."""
    left = limit
    for path in documents:
        with open(path, "rb") as lines:
            for text in read_document_texts(lines, path):
                encoded = text.encode()
                yield text if len(encoded) <= left else encoded[:left].decode("utf-8", "ignore")
                left -= len(encoded)
                if left <= 0:
                    return
