"""Pack documents into rows of one length by best fit, as nanochat's data loader does; no file is read or written here.

A buffer holds the next documents, 1,000 at least. A row takes the longest of them that fits into the rest of the row, again
and again; where none fits, the shortest one is cropped to the rest, and its other tokens are in no row. Of documents of equal
length the first one is taken. So each row is full, and begins where a document does.

nanochat (`tokenizing_distributed_data_loader_with_state_bos_bestfit`) looks at every document of the buffer for each of its
choices; here the buffer is sorted, and a choice is a binary search. Unlike there, the documents end: then the buffer is emptied
into rows, and documents that no longer fill one are left out.
"""

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# A buffer with fewer documents than `BUFFER` is filled up by the next `REFILL`, both as in nanochat.
BUFFER, REFILL = 1000, 128
# Tokens of the rows that are returned together.
BLOCK = 2**18
# Bits for the number of a document in the keys that the buffer is sorted by.
BITS = 40
LAST_NUMBER = 2**BITS - 1


@dataclass
class PackingCounts:
    """The documents that lost tokens when they were packed."""

    cropped_documents: int = 0
    """Documents of which the rows have the beginning only."""
    cropped_tokens: int = 0
    """Tokens of these documents that are in no row."""
    left_out_documents: int = 0
    """Documents at the end that did not fill a row."""
    left_out_tokens: int = 0
    """Tokens of these documents."""

    def cropped_share(self, tokens: int) -> float:
        """Return the cropped tokens as a share of those of all documents, of which the rows have `tokens`."""
        return self.cropped_tokens / max(1, tokens + self.cropped_tokens + self.left_out_tokens)


class DocumentBuffer:
    """The lengths of the documents that wait for a row, sorted. A document is known by its number in order of arrival."""

    def __init__(self) -> None:
        self._keys: list[int] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, first: int, lengths: list[int]) -> None:
        """Add documents, of which the first has the number `first`.

        Args:
            first: above all numbers so far, and below 2**40.
            lengths: count of tokens of each document, 1 or more.
        """
        # Of equal lengths the first document has the last key, so that one search finds it.
        self._keys += [(length << BITS) + LAST_NUMBER - number for number, length in enumerate(lengths, first)]
        self._keys.sort()

    def take_longest(self, most: int) -> tuple[int, int] | None:
        """Remove the longest document of at most so many tokens, and return its number and length; None: all are longer."""
        position = bisect.bisect_left(self._keys, (most + 1) << BITS) - 1
        return None if position < 0 else self._take(position)

    def take_shortest(self) -> tuple[int, int]:
        """Remove the shortest document, and return its number and length."""
        shortest = self._keys[0] >> BITS
        return self._take(bisect.bisect_left(self._keys, (shortest + 1) << BITS) - 1)

    def _take(self, position: int) -> tuple[int, int]:
        length, number = divmod(self._keys.pop(position), 1 << BITS)
        return LAST_NUMBER - number, length


class BestFitPacker:
    """Packs documents into rows; the memory is that of the buffer's documents, of each at most a row."""

    def __init__(self, width: int, first_token: int, buffer: int = BUFFER, refill: int = REFILL) -> None:
        """Begin with an empty buffer.

        Args:
            width: tokens of a row.
            first_token: the token before each document, which counts as one of its tokens.
            buffer: documents that a row chooses from, at least, unless there are no more.
            refill: documents that are added at once to a buffer that has fewer.
        """
        self.width, self.first_token = width, first_token
        self.counts = PackingCounts()
        self.documents = 0
        """Documents that were read."""
        self._buffer_size, self._refill_size = buffer, refill
        self._buffer = DocumentBuffer()
        self._tokens: dict[int, npt.NDArray[np.integer]] = {}
        """Number of a document -> as many of its tokens as a row can have."""

    def rows(self, documents: Iterator[npt.NDArray[np.integer]]) -> Iterator[npt.NDArray[np.int32]]:
        """Yield all rows, some at a time, each (rows, width).

        Args:
            documents: the tokens of each document, without the first token; an array may be reused once the next is taken.
        """
        size = max(1, BLOCK // self.width)
        while True:
            block = np.empty((size, self.width), dtype=np.int32)
            full = sum(1 for _ in itertools.takewhile(lambda row: self._fill(row, documents), block))
            if full:
                yield block[:full]
            if full < size:
                return

    def _fill(self, row: npt.NDArray[np.int32], documents: Iterator[npt.NDArray[np.integer]]) -> bool:
        """Fill a row, and return True; False: there are too few documents, which are counted as left out."""
        start = taken = 0
        while start < self.width:
            self._refill(documents)
            if not len(self._buffer):
                self.counts.left_out_documents, self.counts.left_out_tokens = taken, start
                return False
            room = self.width - start
            number, length = self._buffer.take_longest(room) or self._buffer.take_shortest()
            stop = start + min(length, room)
            row[start] = self.first_token
            row[start + 1 : stop] = self._tokens.pop(number)[: stop - start - 1]
            if length > room:
                self.counts.cropped_documents += 1
                self.counts.cropped_tokens += length - room
            start, taken = stop, taken + 1
        return True

    def _refill(self, documents: Iterator[npt.NDArray[np.integer]]) -> None:
        while len(self._buffer) < self._buffer_size:
            first, lengths = self.documents, []
            for number, tokens in enumerate(itertools.islice(documents, self._refill_size), first):
                lengths.append(len(tokens) + 1)
                self._tokens[number] = tokens[: self.width - 1].copy()  # not a view, which would keep the whole chunk
            if not lengths:
                return
            self._buffer.add(first, lengths)
            self.documents += len(lengths)
