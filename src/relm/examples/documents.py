"""The texts of extracted documents, which tokenizers and examples are built from."""

import io
import json
import os
import re
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

# Bytes of documents in one task of a worker: some 20 ms of work.
CHUNK = 2**20
# Bytes at the end of a chunk in which its last newline is searched first.
CHUNK_END = 2**16
# A document whose line is longer is split into parts; at most so many bytes are searched for the next split point.
LONG_LINE, LONGEST_PART = 2**24, 2**26
# Split points in the JSON of a text, whose parts can be encoded one by one. The first is before a space that follows another
# character: no tokenizer of a known kind has a token across it, and each begins a new word there. (The six bytes before are no
# escape such as `\n`, nor is the last one the end of a space in UTF-8.) The other is the end of a line, which no sentence
# crosses.
BEFORE_SPACE = re.compile(rb"[^\\]{5}[0-9A-Za-z\x8b-\x9e\xa1-\xa7\xaa-\xae\xb0-\xbf](?= )")
AFTER_NEWLINE = re.compile(rb"(?<!\\)(?:\\\\)*\\n")
# The start of a line up to its text, as documents are written, with or without spaces.
_HEAD = re.compile(rb'\{ *"id": *"(?:[^"\\]|\\.)*", *"title": *"(?:[^"\\]|\\.)*", *"text": *"')
_TAIL = b'"}\n'


class Lines(NamedTuple):
    """Consecutive lines of a documents file, or a part of a very long one."""

    path: Path
    first: int
    """Number of the first line, counted from 1; 0: not known, and counted only for a message."""
    start: int
    """Offset of the first byte in the file."""
    size: int
    begins: bool = True
    """True: the first document begins here; False: it continues from the `Lines` before."""
    ends: bool = True
    """True: the last document ends here."""

    def texts(self) -> list[str]:
        """Return the texts of these lines, or of this part; raise as `utf8_texts` does."""
        return [text.decode() for text in self.utf8_texts().texts]

    def utf8_texts(self) -> Utf8Texts:
        """Return the texts of these lines, or of this part, in UTF-8."""
        try:
            return self._utf8_texts()
        except RelmError:
            if self.first:
                raise
        return self._replace(first=_line_at(self.path, self.start))._utf8_texts()

    def _utf8_texts(self) -> Utf8Texts:
        content = self._content()
        if self.begins and self.ends:
            plain = read_plain_texts(content)
            if plain is not None:
                return plain
            texts = document_texts(_split_lines(content), self.path, self.first)
            return Utf8Texts.of([text.encode() for text in texts])
        if self.begins:
            content = _HEAD.sub(b"", content, count=1)
        if self.ends:
            content = content.removesuffix(b"\n").removesuffix(_TAIL[:-1])
        return Utf8Texts.of([_unescaped(content, f"{self.path}, line {self.first}").encode()])

    @property
    def lines(self) -> list[bytes]:
        """Return the bytes of each line, read from the file."""
        return _split_lines(self._content())

    def _content(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)


def _split_lines(content: bytes) -> list[bytes]:
    return io.BytesIO(content).readlines()


def _unescaped(content: bytes, location: str) -> str:
    """Return the text of a JSON string without its quotes."""
    try:
        text = str(json.loads(b'"' + content + b'"'))
        text.encode()
    except (json.JSONDecodeError, UnicodeError) as error:
        raise RelmError(f"{location}: not valid JSON in UTF-8 ({error}); delete the file and extract it again") from None
    return text


def checked_documents(documents: Path) -> tuple[str, bool]:
    """Compare a file with its sidecar, if any; return its sha256, and True if the sidecar counts no documents."""
    require_documents(documents)
    if sidecar_of(documents).exists():
        sidecar = checked_sidecar(documents)
        return sidecar["sha256"], sidecar.get("documents") == 0
    return sha256_of(documents), False


def require_documents(documents: Path) -> None:
    """Raise RelmError unless there is such a file."""
    if not documents.exists():
        raise RelmError(f"{documents}: no such file; run the step that extracts the documents")


def chunks_of(file: IO[bytes], parting: re.Pattern[bytes] | None = None, numbered: bool = True) -> Iterator[Lines]:
    """Yield the lines of an opened documents file in chunks of about `CHUNK` bytes, always whole lines except for very long
    ones.

    Only the offsets of lines are found here; the workers read them. `parting` finds split points of a document whose line is
    longer than `LONG_LINE`, such as `BEFORE_SPACE`; None: no split. With `numbered=False` `Lines.first` is 0, and the file is
    not read but for the ends of chunks.
    """
    documents = Path(file.name)
    for first, start, size in _numbered_blocks(file) if numbered else _blocks(file):
        if size > LONG_LINE and parting is not None:
            yield from _parts(file, documents, first, start, size, parting)
        else:
            yield Lines(documents, first, start, size)


def _numbered_blocks(file: IO[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield the number of the first line, the offset and the size of each chunk of whole lines."""
    first, start = 1, 0
    while block := os.pread(file.fileno(), CHUNK, start):
        size = block.rfind(b"\n") + 1 or _line_size(file, start)
        yield first, start, size
        first, start = first + (_count_newlines(block) or 1), start + size


def _blocks(file: IO[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield the same with 0 for the number."""
    start = 0
    while size := _size_of_lines(file, start) or _line_size(file, start):
        yield 0, start, size
        start += size


def _size_of_lines(file: IO[bytes], start: int) -> int:
    """Return the size of the whole lines in `CHUNK` bytes from an offset on; 0 if there is no end of a line."""
    stop = start + CHUNK
    while stop > start:
        begin = max(start, stop - CHUNK_END)
        if end := os.pread(file.fileno(), stop - begin, begin).rfind(b"\n") + 1:
            return begin + end - start
        stop = begin
    return 0


def _line_at(path: Path, offset: int) -> int:
    """Return the number of the line, counted from 1, that an offset in a file is in."""
    number = 1
    with open(path, "rb") as file:
        while offset > 0 and (block := file.read(min(CHUNK, offset))):
            number, offset = number + _count_newlines(block), offset - len(block)
    return number


def _count_newlines(block: bytes) -> int:
    """Return ``block.count(b"\\n")``, several times faster where newlines are rare."""
    return int(np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")))


def read_chunks(documents: Iterable[Path], parting: re.Pattern[bytes] | None = None, numbered: bool = True) -> Iterator[Lines]:
    """Yield the lines of several files of documents, one file after the other, as `chunks_of` does."""
    for path in documents:
        with open(path, "rb") as file:
            yield from chunks_of(file, parting, numbered)


def applied(function: Callable[[Lines], Result], lines: Lines) -> tuple[Lines, Result]:
    """Return the lines with what a function makes of them; a worker calls it."""
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


def _parts(file: IO[bytes], documents: Path, first: int, start: int, size: int, parting: re.Pattern[bytes]) -> Iterator[Lines]:
    file.seek(start)
    if not _HEAD.match(file.read(CHUNK)):  # in another form, though perhaps valid: not split
        yield Lines(documents, first, start, size)
        return
    offset, end = start, start + size
    while end - offset > LONG_LINE:
        length = _part_size(file, offset, min(end - offset, LONGEST_PART), parting)
        if not length and end - offset > LONGEST_PART:
            line = first or _line_at(documents, start)
            raise RelmError(
                f"{documents}, line {line}: {LONGEST_PART:,} bytes of one document without a split point "
                "(the end of a word, or of a line for objectives that read sentences); split the document"
            )
        if not length:
            break
        yield Lines(documents, first, offset, length, begins=offset == start, ends=False)
        offset += length
    yield Lines(documents, first, offset, end - offset, begins=offset == start, ends=True)


def _part_size(file: IO[bytes], offset: int, most: int, parting: re.Pattern[bytes]) -> int:
    """Return the bytes from `offset` to a split point, after some `CHUNK` bytes; 0 if there is none within `most` bytes."""
    file.seek(offset)
    content = bytearray(file.read(CHUNK))
    while len(content) < most:
        searched = len(content)
        content += file.read(min(CHUNK, most - searched))
        if (found := parting.search(content, searched - 16)) and found.end() < most:
            return found.end()
    return 0


def counts_of(texts: Sequence[str]) -> tuple[int, int]:
    """Return the words (runs of non-space characters, as in `str.split`) and bytes in UTF-8 of all texts together."""
    return Utf8Texts.of([text.encode() for text in texts]).count()


def document_texts(lines: Iterable[bytes], path: Path, first_line: int = 1) -> Iterator[str]:
    """Yield the text of each line of `path`; `lines` begin at line `first_line`."""
    for number, line in zip(count(first_line), lines, strict=False):
        yield parse_document(line, f"{path}, line {number}").text


def first_texts(documents: list[Path], limit: int) -> Iterator[str]:
    """Yield texts of several files in order up to `limit` bytes of UTF-8; the last one is truncated between characters."""
    left = limit
    for path in documents:
        with open(path, "rb") as lines:
            for text in document_texts(lines, path):
                encoded = text.encode()
                yield text if len(encoded) <= left else encoded[:left].decode("utf-8", "ignore")
                left -= len(encoded)
                if left <= 0:
                    return
