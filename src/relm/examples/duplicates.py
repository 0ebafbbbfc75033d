"""Exact duplicates among documents: texts that are equal but for case and white space."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relm.corpus.ngrams import normalise

DUPLICATE = "duplicate"
"""The reason of a document's removal that is no test's name."""
Digests = npt.NDArray[np.uint64]
BYTES = 16
"""Size of a digest: of 10^9 different texts, two have the same one with a probability of 10^-21."""


def digest_texts(texts: Sequence[str]) -> Digests:
    """Return a digest of each text, (texts, 2): equal for texts that are equal but for case, white space and Unicode's form.

    >>> one, same, other = digest_texts(["A text", " a  TEXT\\n", "a text."]).tolist()
    >>> one == same, one == other
    (True, False)
    """
    plain = (" ".join(normalise(text).split()).encode() for text in texts)
    content = b"".join(hashlib.blake2b(text, digest_size=BYTES).digest() for text in plain)
    return np.frombuffer(content, dtype="<u8").reshape(-1, 2)


def find_duplicates(digests: Digests) -> npt.NDArray[np.int64]:
    """Return for each document the number of the first one with its digest, (documents,): its own, unless it is a duplicate.

    >>> find_duplicates(np.array([[5, 1], [2, 2], [5, 1], [5, 0]], dtype=np.uint64)).tolist()
    [0, 1, 0, 3]
    """
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones stay in the order of the documents
    ordered = digests[order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = np.empty(len(order), dtype=np.int64)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    return firsts
