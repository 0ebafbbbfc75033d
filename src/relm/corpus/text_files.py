"""Text files as documents: one a file, UTF-8, taken as it is."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from relm.catalogue import Dataset
from relm.corpus.documents import Document, Encoded, Skipped, encoded
from relm.errors import RelmError
from relm.identity import folder_files


def read_text(path: Path) -> str:
    """The text of a file: a byte-order mark is removed, CRLF becomes LF, nothing else changes.

    Raises:
        RelmError: the file cannot be read, or is not UTF-8; names the byte.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 1]
        raise RelmError(f"{path}: byte {error.start}: not valid UTF-8 (found {found!r}); save the file as UTF-8") from None
    return text.removeprefix(codecs.BOM_UTF8.decode()).replace("\r\n", "\n")


def read_text_files(dataset: Dataset, source: Path) -> Iterator[Encoded | Skipped]:
    """The files of a folder that match ``dataset.pattern``, by their path inside it, or the one file that ``source`` is.

    The path inside the folder is a document's id and title. Files of nothing but white space are skipped.
    """
    if not source.is_dir():
        yield _document(source.name, source)
        return
    for path in folder_files(dataset.model_copy(update={"folder": str(source)})):
        yield _document(path.relative_to(source).as_posix(), path)


def names_of_text_files(dataset: Dataset, folder: Path) -> list[str]:
    """The paths inside the folder of all files that are not empty, in the order in which they are read."""
    files = folder_files(dataset.model_copy(update={"folder": str(folder)}))
    return [path.relative_to(folder).as_posix() for path in files if path.stat().st_size]


def _document(name: str, path: Path) -> Encoded | Skipped:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RelmError(f"{path!r}: the file's name is not valid UTF-8; rename it") from None
    text = read_text(path)
    if not text.strip():
        return Skipped("empty")
    return encoded(Document(id=name, title=name, text=text))
