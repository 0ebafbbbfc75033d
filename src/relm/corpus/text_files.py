"""Read text files in UTF-8 as documents: one per file, or two if the end of each is held out."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from relm.corpus.documents import HELD_OUT_NUMBER, LONGEST, TRAINED_NUMBER, Document, Encoded, Skipped, encode_document
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.recipes.datasets import Dataset


def read_text(path: Path) -> str:
    """Return the text of a file, without a byte-order mark and with LF for CRLF."""
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= LONGEST else b""
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; correct the path or its permissions") from None
    if size > LONGEST:
        raise RelmError(
            f"{path}: has {format_bytes(size)}, expected at most {format_bytes(LONGEST)} for one document; if it holds "
            "many, read it with format: text_lines or text_sentences"
        )
    return decode_text(content, str(path), "save the file as UTF-8").replace("\r\n", "\n")


def decode_text(content: bytes, location: str, remedy: str) -> str:
    """Return the text of a file in UTF-8, without a byte-order mark; `location` and `remedy` are for messages."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 1]
        raise RelmError(f"{location}: byte {error.start}: not valid UTF-8 (found {found!r}); {remedy}") from None
    if "\0" in text:
        raise RelmError(f"{location}: byte {content.index(0)}: a NUL: not a text file, or one in UTF-16; {remedy}")
    return text.removeprefix(codecs.BOM_UTF8.decode())


def batch_text_files(dataset: Dataset, path: Path) -> Iterator[Path]:
    """Yield the one file, for a worker to read."""
    yield path


def extract_text_files(dataset: Dataset, file: str, path: Path) -> Iterator[Encoded | Skipped]:
    """Yield a file's text as one document, named after the file, or skip it if blank.

    With `held_out_end` it becomes two documents FILE:CHARACTER, after their first characters, counted from 0.
    """
    text = read_text(path)
    if not text.strip():
        yield Skipped("empty")
    elif dataset.held_out_end is None:
        yield encode_document(Document(id=file, title=file, text=text))
    else:
        cut = int(len(text) * (1 - dataset.held_out_end))
        for start, part, number in ((0, text[:cut], TRAINED_NUMBER), (cut, text[cut:], HELD_OUT_NUMBER)):
            if part:
                yield encode_document(Document(id=f"{file}:{start}", title=file, text=part))._replace(number=number)
