"""Text files as documents: one a file, UTF-8, taken as it is, or two where the end of each is held out."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from relm.corpus.documents import LONGEST, Document, Encoded, Skipped, encoded
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.recipes.datasets import Dataset

# Numbers that `split_of` makes one split of, whatever share of documents is held out.
_TRAINED, _HELD_OUT = 1, 0


def read_text(path: Path) -> str:
    """The text of a file: a byte-order mark is removed, CRLF becomes LF, nothing else changes.

    Raises:
        RelmError: the file cannot be read, is too long for one document, is not UTF-8 or has a NUL; names the byte.
    """
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= LONGEST else b""
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}") from None
    if size > LONGEST:
        raise RelmError(
            f"{path}: {format_bytes(size)} are too long for one document, of at most {format_bytes(LONGEST)}; if it holds "
            "many, read it with format: text_lines or text_sentences"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 1]
        raise RelmError(f"{path}: byte {error.start}: not valid UTF-8 (found {found!r}); save the file as UTF-8") from None
    if "\0" in text:
        place = content.index(b"\0")
        raise RelmError(f"{path}: byte {place}: a NUL: not a file of text, or one in UTF-16; save it as UTF-8")
    return text.removeprefix(codecs.BOM_UTF8.decode()).replace("\r\n", "\n")


def batches_of_text_files(dataset: Dataset, path: Path) -> Iterator[Path]:
    """The one file, for a worker to read."""
    yield path


def documents_of_text_files(dataset: Dataset, file: str, path: Path) -> Iterator[Encoded | Skipped]:
    """The document that the file is, called by its name; one of nothing but white space is skipped.

    With `held_out_end` it is two, called FILE:CHARACTER, where each begins, counted from 0.
    """
    text = read_text(path)
    if not text.strip():
        yield Skipped("empty")
    elif dataset.held_out_end is None:
        yield encoded(Document(id=file, title=file, text=text))
    else:
        cut = int(len(text) * (1 - dataset.held_out_end))
        for start, part, number in ((0, text[:cut], _TRAINED), (cut, text[cut:], _HELD_OUT)):
            if part:
                yield encoded(Document(id=f"{file}:{start}", title=file, text=part))._replace(number=number)
