"""Compare documents with each other and with the texts of tests in one pass: duplicates, and sequences of words of a test.

A test's sequences are kept as sets, and the documents stream past them, so memory grows with the test, and by 8 bytes with each
document whose duplicates are sought. Results come in the order of the documents: any count of workers gives the same.
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from relm.examples.cut_passages import WordSequences, find_words
from relm.examples.documents import Lines, document_texts
from relm.examples.mapped_documents import map_documents

DUPLICATE = "duplicate"
"""The reason to remove a document that another one repeats; all other reasons are names of tests."""
Digests = npt.NDArray[np.uint64]
BYTES = 8
"""Size of a digest: of 10^8 different texts, two have the same one with a probability of 3 in 10,000."""


class Compared(NamedTuple):
    """The counts of some documents, and what they share."""

    documents: int
    words: int
    digests: Digests
    """(documents,); (0,) where duplicates are not sought."""
    found: dict[int, list[str]]
    """Position of a document -> the sequences that it has, if any."""


@dataclass(frozen=True)
class DocumentComparison:
    """A function that compares some documents; each worker gets a copy."""

    sought: WordSequences
    find: Callable[[str, WordSequences], list[str]]
    """`relm.examples.cut_passages.find_sequences` or `find_every`."""
    duplicates: bool = False

    def __call__(self, lines: Lines) -> Compared:
        """Return what the documents of some lines share."""
        texts = list(document_texts(lines.lines, lines.path, lines.first))
        words, found = 0, {}
        for position, text in enumerate(texts if self.sought.known else ()):
            inside = find_words(text).words
            words += len(inside)
            if self.sought.may_be_in(inside) and (sequences := self.find(text, self.sought)):
                found[position] = sequences
        return Compared(len(texts), words, digest_texts(texts if self.duplicates else ()), found)


def compare(
    documents: Sequence[Path], comparison: DocumentComparison, workers: int | None
) -> Generator[tuple[Lines, Compared], None, None]:
    """Yield some documents of files at a time, in order, with what they share; the count of workers changes nothing."""
    return map_documents(comparison, documents, workers, "comparing documents")


def digest_texts(texts: Sequence[str]) -> Digests:
    """Return a digest of each text, (texts,): equal for texts that are equal but for case, white space and Unicode's form.

    >>> one, same, other = digest_texts(["A text", " a  TEXT\\n", "a text."]).tolist()
    >>> one == same, one == other
    (True, False)
    """
    plain = (" ".join(normalize("NFC", text.lower()).split()).encode() for text in texts)
    content = b"".join(hashlib.blake2b(text, digest_size=BYTES).digest() for text in plain)
    return np.frombuffer(content, dtype="<u8")


def find_duplicates(digests: Digests) -> npt.NDArray[np.int64]:
    """Return for each document the number of the first one with its digest, (documents,): its own, unless it is a duplicate.

    >>> find_duplicates(np.array([5, 2, 5, 1], dtype=np.uint64)).tolist()
    [0, 1, 0, 3]
    """
    _, firsts, numbers = np.unique(digests, return_index=True, return_inverse=True)
    found: npt.NDArray[np.int64] = firsts[numbers]
    return found
