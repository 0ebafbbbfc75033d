"""Documents: the JSON lines between extraction and tokenisation, and the choice of those held out of training.

Each line is one object in UTF-8, ``{"id":...,"title":...,"text":...}``, in the order of the source; a shard has one file for
each split.
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
from relm.corpus import compiled
from relm.errors import RelmError

TRAIN, HELD_OUT = "train", "held_out"
# Numbers for which `choose_split` gives these splits, whatever share of documents is held out.
TRAINED_NUMBER, HELD_OUT_NUMBER = 1, 0

# The longest document, in bytes of the source: more is not one document and may not fit into memory.
LONGEST = 1 << 26
# Words are counted in pieces of this many characters: a list of all words takes ten times the memory of a text.
COUNTED = 1 << 20
_RARELY_ESCAPED = bytes(each for each in range(32) if each != ord("\n"))


class Document(NamedTuple):
    """One article, page or file."""

    id: str
    """The name in the source: a page id, a path."""
    title: str
    """The title; it decides the split if the source has titles."""
    text: str
    """Plain text."""


class Encoded(NamedTuple):
    """The line of a document, with its counts."""

    number: int
    """Decides the split: `hash_title` of its title or text, or 0 and 1 for the two parts of a file."""
    line: bytes
    """Its JSON and a newline."""
    words: int
    """Runs of non-space characters of its text."""
    bytes: int
    """The size of its text in UTF-8."""
    unknown: Mapping[str, int] = {}
    """Templates within its sentences whose text is unknown, and how often each occurs."""


class Skipped(NamedTuple):
    """An entry of the source that does not become a document."""

    reason: str
    """The name that counts it, such as redirects."""
    damage: str | None = None
    """Its place and fault, if the user should know."""


@dataclass
class DocumentCounts:
    """Sums over the documents of a file."""

    documents: int = 0
    words: int = 0
    bytes: int = 0

    def add(self, document: Encoded) -> None:
        """Count one more document."""
        self.documents += 1
        self.words += document.words
        self.bytes += document.bytes


def hash_title(title: str) -> int:
    """Return the first eight bytes, big-endian, of the sha256 of a title in UTF-8."""
    return int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "big")


def choose_split(number: int, held_out_one_in: int) -> str:
    """Return ``held_out`` for one document in ``held_out_one_in``, by the `hash_title` of its title; else ``train``."""
    return TRAIN if number % held_out_one_in else HELD_OUT


def find_held_out_one_in(numbers: Sequence[int], wanted: int) -> int | None:
    """Return the `held_out_one_in` closest to ``wanted`` (lower ones first) that empties no split; None: none does."""
    for one_in in itertools.chain(range(wanted, 1, -1), range(wanted + 1, wanted + 1000)):
        held_out = sum(choose_split(number, one_in) == HELD_OUT for number in numbers)
        if 0 < held_out < len(numbers):
            return one_in
    return None


def count_words(text: str) -> int:
    """Return the number of runs of non-space characters: ``len(text.split())``, in little memory."""
    if compiled.count_words:
        return compiled.count_words(text)
    words = 0
    for start in range(0, len(text), COUNTED):
        words += len(text[start : start + COUNTED].split())
        words -= bool(start and not text[start - 1].isspace() and not text[start].isspace())  # the pieces share a word
    return words


def encode_document(document: Document, decided_by: str | None = None) -> Encoded:
    """Return the document's line of JSON and its counts; the text `decided_by`, or the title, decides the split."""
    text = document.text.encode()
    if len(text.translate(None, _RARELY_ESCAPED)) == len(text):  # twice as fast as json's own function
        shown = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    else:
        shown = encode_basestring(document.text)[1:-1].encode()
    name, title = (encode_basestring(each).encode() for each in (document.id, document.title))
    line = b'{"id":%b,"title":%b,"text":"%b"}\n' % (name, title, shown)
    number = hash_title(document.title if decided_by is None else decided_by)
    return Encoded(number, line, count_words(document.text), len(text))


@contextlib.contextmanager
def split_files(outputs: Mapping[str, Path]) -> Iterator[Mapping[str, IO[bytes]]]:
    """Open the files of all splits for writing; they appear together if the block ends without an error.

    Earlier sidecars are removed just before, so that they never describe another content.
    """
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(atomic_file(path)) for split, path in outputs.items()}
        yield files
        for file in files.values():  # a full disk fails here, before a file gets its name
            file.flush()
            os.fsync(file.fileno())
        for path in outputs.values():
            sidecar_of(path).unlink(missing_ok=True)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file of JSON lines in order; errors have the file and line."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, when the generator ends
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; extract the documents first") from None
    with file:
        for number, line in enumerate(file, 1):
            yield parse_document(line, f"{path}, line {number}")


def parse_document(line: bytes, location: str) -> Document:
    """Return the document of one line of JSON; `location` is for messages.

    Raises RelmError unless the line is an object of JSON in UTF-8 with the keys of a document, all strings.
    """
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            "".join(map(str, value.values())).encode()  # half of a surrogate pair, escaped, is not text
    except (json.JSONDecodeError, UnicodeError) as error:
        raise RelmError(f"{location}: not valid JSON in UTF-8 ({error}); delete the file and extract it again") from None
    if not isinstance(value, dict) or set(value) != set(Document._fields):
        found = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        raise RelmError(f"{location}: expected the keys id, title and text, found {found or 'none'}")
    if wrong := [key for key, field in value.items() if not isinstance(field, str)]:
        raise RelmError(f"{location}: {wrong[0]}: expected a string, found {value[wrong[0]]!r}")
    return Document(**value)
