"""Find duplicates of documents, and sequences of words that they share with a test, in one pass.

A test's sequences are kept as sets, and the documents stream past them. So memory grows with the test, and for duplicates by 8
bytes per document. Results come in the order of the documents, for any number of workers.
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from relm.examples.cut_passages import WordSequences, find_sequences, find_words
from relm.examples.documents import Lines, read_document_texts
from relm.examples.mapped_documents import map_documents

DUPLICATE = "duplicate"
"""The reason to remove a copy of a document; all other reasons are names of tests."""
Digests = npt.NDArray[np.uint64]
BYTES = 8
"""Size of a digest: two of 10^8 different texts share one with a probability of 3 in 10,000."""


class Compared(NamedTuple):
    """The counts of some documents, and what they share."""

    documents: int
    digests: Digests
    """(documents,); (0,) without duplicates."""
    found: dict[int, list[str]]
    """Position of a document -> its sequences, if any."""


@dataclass(frozen=True)
class DocumentComparison:
    """A function that compares some documents; each worker gets a copy."""

    sought: WordSequences
    duplicates: bool = False

    def __call__(self, lines: Lines) -> Compared:
        """Return what the documents of some lines share."""
        texts = list(read_document_texts(lines.lines, lines.path, lines.first))
        found = {}
        for position, text in enumerate(texts if self.sought.known else ()):
            if self.sought.may_be_in(find_words(text).words) and (sequences := find_sequences(text, self.sought)):
                found[position] = sequences
        return Compared(len(texts), digest_texts(texts if self.duplicates else ()), found)


def compare(
    documents: Sequence[Path], comparison: DocumentComparison, workers: int | None
) -> Generator[tuple[Lines, Compared], None, None]:
    """Yield some documents at a time, in order, with what they share; the number of workers changes nothing."""
    return map_documents(comparison, documents, workers, "comparing documents")


def digest_texts(texts: Sequence[str]) -> Digests:
    """Return a digest of each text, (texts,), the same for texts that differ only in case, white space or Unicode's form.

    >>> one, same, other = digest_texts(["A text", " a  TEXT\\n", "a text."]).tolist()
    >>> one == same, one == other
    (True, False)
    """
    plain = (" ".join(normalize("NFC", text.lower()).split()).encode() for text in texts)
    content = b"".join(hashlib.blake2b(text, digest_size=BYTES).digest() for text in plain)
    return np.frombuffer(content, dtype="<u8")


def find_duplicates(digests: Digests) -> npt.NDArray[np.int64]:
    """Return the number of the first document with each one's digest, (documents,); a duplicate gets an earlier number.

    >>> find_duplicates(np.array([5, 2, 5, 1], dtype=np.uint64)).tolist()
    [0, 1, 0, 3]
    """
    _, firsts, numbers = np.unique(digests, return_index=True, return_inverse=True)
    found: npt.NDArray[np.int64] = firsts[numbers]
    return found
