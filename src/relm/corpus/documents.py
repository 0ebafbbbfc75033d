"""Documents: the JSON lines between extraction and tokenisation, and which of them are held out of training.

One object a line, UTF-8, ``{"id":...,"title":...,"text":...}``, in the order of the source; two files a shard, one for each
split.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from pathlib import Path
from typing import IO, NamedTuple

from relm.artifact import atomic_file, sidecar_of
from relm.errors import RelmError

TRAIN, HELD_OUT = "train", "held_out"

# The longest document, in bytes of the source: what is longer is not one document, and would not fit into memory everywhere.
LONGEST = 1 << 26
# Characters of which words are counted at once: a list of all words of a long text would take ten times its memory.
COUNTED = 1 << 20


class Document(NamedTuple):
    """One article, page or file."""

    id: str
    """What the source calls it: a page id, a path."""
    title: str
    """For a reader; decides the split, unless the source has no titles."""
    text: str
    """Plain text."""


class Encoded(NamedTuple):
    """A document ready to be written, and what is counted of it."""

    number: int
    """What decides the split: `title_number` of its title or of its text, or which end of a file it is."""
    line: bytes
    """Its JSON and a newline."""
    words: int
    """Runs of non-space characters of its text."""
    bytes: int
    """Of its text in UTF-8."""


class Skipped(NamedTuple):
    """Something in the source that does not become a document."""

    reason: str
    """Under which name it is counted, such as redirects."""


@dataclass
class DocumentCounts:
    """Sums over the documents of a file."""

    documents: int = 0
    words: int = 0
    bytes: int = 0

    def add(self, document: Encoded) -> None:
        """Count one more."""
        self.documents += 1
        self.words += document.words
        self.bytes += document.bytes


def title_number(title: str) -> int:
    """The first eight bytes, big-endian, of the sha256 of a title in UTF-8: it depends on nothing but the title."""
    return int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "big")


def split_of(number: int, held_out_one_in: int) -> str:
    """``held_out`` for one document in so many, by the `title_number` of its title; else ``train``."""
    return TRAIN if number % held_out_one_in else HELD_OUT


def fitting_held_out_one_in(numbers: Sequence[int], wanted: int) -> int | None:
    """The value of `held_out_one_in` nearest below ``wanted``, else above it, that leaves documents in both splits."""
    for one_in in itertools.chain(range(wanted, 1, -1), range(wanted + 1, wanted + 1000)):
        held_out = sum(split_of(number, one_in) == HELD_OUT for number in numbers)
        if 0 < held_out < len(numbers):
            return one_in
    return None


def words_in(text: str) -> int:
    """How many runs of non-space characters there are: ``len(text.split())``, in little memory."""
    words = 0
    for start in range(0, len(text), COUNTED):
        words += len(text[start : start + COUNTED].split())
        words -= bool(start and not text[start - 1].isspace() and not text[start].isspace())  # one word in two pieces
    return words


def encoded(document: Document, decided_by: str | None = None) -> Encoded:
    """The document's line of JSON, and its counts.

    Args:
        decided_by: what decides the split; None: the title.
    """
    name, title, text = map(encode_basestring, document)  # three times as fast as json.dumps of a mapping
    line = f'{{"id":{name},"title":{title},"text":{text}}}\n'.encode()
    text = document.text
    number = title_number(document.title if decided_by is None else decided_by)
    return Encoded(number, line, words_in(text), len(text.encode()))


@contextlib.contextmanager
def split_files(outputs: Mapping[str, Path]) -> Iterator[Mapping[str, IO[bytes]]]:
    """Open the files of all splits for writing; they appear together when the block ends without an error, or not at all.

    A sidecar of an earlier attempt is removed just before, so that it never describes another file's content.
    """
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(atomic_file(path)) for split, path in outputs.items()}
        yield files
        for file in files.values():  # what can fail for want of space fails here, before the first file gets its name
            file.flush()
            os.fsync(file.fileno())
        for path in outputs.values():
            sidecar_of(path).unlink(missing_ok=True)


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a file of JSON lines, one after the other.

    Raises:
        RelmError: the file is absent, or a line is not a document; names the file and line.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, when the generator ends
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; run the step that makes it") from None
    with file:
        for number, line in enumerate(file, 1):
            yield parsed_document(line, f"{path}, line {number}")


def parsed_document(line: bytes, place: str) -> Document:
    """The document of one line of JSON.

    Args:
        place: file and line, for the message.

    Raises:
        RelmError: the line is not JSON, not UTF-8, or not an object with exactly the keys of a document, all strings.
    """
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            "".join(map(str, value.values())).encode()  # half of a surrogate pair, spelt out in JSON, is no text
    except (json.JSONDecodeError, UnicodeError) as error:
        raise RelmError(f"{place}: not valid JSON in UTF-8 ({error}); delete the file and extract it again") from None
    if not isinstance(value, dict) or set(value) != set(Document._fields):
        found = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        raise RelmError(f"{place}: expected the keys id, title and text, found {found or 'none'}")
    if wrong := [key for key, field in value.items() if not isinstance(field, str)]:
        raise RelmError(f"{place}: {wrong[0]}: expected a string, found {value[wrong[0]]!r}")
    return Document(**value)
