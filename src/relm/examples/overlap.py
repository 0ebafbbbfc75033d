"""Count the sequences of words that documents share with the texts of a test.

The test's sequences are kept as sorted hashes, and the documents stream past them in chunks, so memory grows with the test and
not with the documents. Counts are added, and first places taken, in the order of the documents: any count of workers gives the
same.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.corpus.ngrams import Hashes, Integers, WordRule, Words, hash_ngrams, hash_words
from relm.corpus.workers import ordered_map
from relm.examples.documents import Lines, document_texts, read_chunks
from relm.limits import usable_cores
from relm.progress import ProgressBar

# GPT-3's paper (https://arxiv.org/abs/2005.14165, appendix C) compares 13 words, and 8 at least where a test's texts are short.
LONGEST, SHORTEST = 13, 8
# Bytes of documents for each further worker: with fewer, starting one takes longer than it saves.
BYTES_PER_WORKER = 1 << 24
# Entries of the table of first bits for each sought sequence: most other sequences then meet an empty entry.
_ENTRIES_EACH, _LARGEST_TABLE = 8, 1 << 24


@dataclass(frozen=True)
class Sought:
    """The sequences of words of a test, each once, numbered from the shortest ones on and then by hash."""

    hashes: dict[int, Hashes]
    """Words in a sequence -> its sequences' hashes, sorted, without doubles."""

    def __len__(self) -> int:
        return sum(map(len, self.hashes.values()))

    def sequence(self, number: int) -> tuple[int, int]:
        """Return the count of words of a sequence, and its hash."""
        for n, hashes in self.hashes.items():
            if number < len(hashes):
                return n, int(hashes[number])
            number -= len(hashes)
        raise IndexError(number)

    @functools.cached_property
    def _tables(self) -> dict[int, npt.NDArray[np.bool_]]:
        """For each count of words, which first bits of a hash occur; made in each worker, and not sent to it."""
        tables = {}
        for n, hashes in self.hashes.items():
            bits = min(_ENTRIES_EACH * len(hashes), _LARGEST_TABLE).bit_length()
            tables[n] = np.zeros(1 << bits, dtype=np.bool_)
            tables[n][hashes >> np.uint64(64 - bits)] = True
        return tables

    def find(self, words: Words) -> tuple[Integers, Integers]:
        """Return number and text of each sequence of some texts that is sought, (found,) each, with repetitions."""
        nothing = np.empty(0, dtype=np.int64)
        numbers, texts, first = [nothing], [nothing], 0
        for n, hashes in self.hashes.items():
            table, ngrams = self._tables[n], hash_ngrams(words, n)
            bits = len(table).bit_length() - 1
            likely = np.flatnonzero(table[ngrams.hashes >> np.uint64(64 - bits)])
            position = np.searchsorted(hashes, ngrams.hashes[likely])
            found = hashes[np.minimum(position, len(hashes) - 1)] == ngrams.hashes[likely]
            numbers.append(first + position[found])
            texts.append(ngrams.texts[likely[found]])
            first += len(hashes)
        return np.concatenate(numbers), np.concatenate(texts)


class ItemNGrams(NamedTuple):
    """The sequences of words of each item of a test."""

    sought: Sought
    items: Integers
    """(pairs,) index of an item, ascending."""
    numbers: Integers
    """(pairs,) number of one of its sequences in `sought`."""
    whole: npt.NDArray[np.bool_]
    """(items,) True if a text of it is sought as a whole, because it is shorter than `LONGEST`."""


def seek_items(items: Sequence[Sequence[str]], rule: WordRule = WordRule.UNICODE) -> ItemNGrams:
    """Return the sequences of words of each item of a test, an item being one or several texts.

    A text of 13 words or more has all of its sequences of 13 words; one of 8 to 12 words is sought as a whole; a shorter one
    has none.
    """
    owners = np.repeat(np.arange(len(items)), [len(texts) for texts in items])
    words = hash_words([text for texts in items for text in texts], rule)
    sizes = np.bincount(words.texts, minlength=len(owners))
    hashes: dict[int, Hashes] = {}
    found_items, found_numbers, first = [], [], 0
    for n in range(SHORTEST, LONGEST + 1):
        chosen = sizes == n if n < LONGEST else sizes >= n
        if not chosen.any():
            continue
        kept = chosen[words.texts]
        ngrams = hash_ngrams(Words(words.hashes[kept], words.texts[kept]), n)
        hashes[n], numbers = np.unique(ngrams.hashes, return_inverse=True)
        found_items.append(owners[ngrams.texts])
        found_numbers.append(first + numbers)
        first += len(hashes[n])
    nothing = np.empty(0, dtype=np.int64)
    pairs = _unique_pairs(np.concatenate([nothing, *found_items]), np.concatenate([nothing, *found_numbers]))
    short = owners[(sizes >= SHORTEST) & (sizes < LONGEST)]
    return ItemNGrams(Sought(hashes), *pairs, np.isin(np.arange(len(items)), short))


def _unique_pairs(first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Return pairs of numbers, each once, sorted by the first and then by the second."""
    width = int(second.max(initial=0)) + 1
    keys = np.unique(first * width + second)
    return keys // width, keys % width


class DocumentLine(NamedTuple):
    """A document in a file of documents."""

    path: Path
    line: int
    offset: int
    """Bytes before the line."""


class ChunkOverlap(NamedTuple):
    """The sequences that a chunk of documents shares with a test."""

    path: Path
    size: int
    """Bytes of the chunk."""
    numbers: Integers
    """(found,) numbers of the sequences that occur in the chunk, ascending."""
    documents: Integers
    """(found,) in how many documents each occurs."""
    lines: Integers
    """(found,) line of the first of them."""
    offsets: Integers
    """(found,) bytes before that line."""
    sharing: int
    """Documents that have any."""
    total: int
    """Documents."""
    words: int


class Overlap:
    """Sums over all documents."""

    def __init__(self, sought: int) -> None:
        """Begin with no documents.

        Args:
            sought: count of sequences that are looked for.
        """
        self.documents = np.zeros(sought, dtype=np.int64)
        """(sought,) in how many documents each sequence occurs."""
        self.first = np.full((3, sought), -1, dtype=np.int64)
        """(3, sought) index of the file, line and offset of the first of them; -1: in none."""
        self.paths: list[Path] = []
        self.sharing = self.total = self.words = 0

    def add(self, chunk: ChunkOverlap) -> None:
        """Count the documents of one more chunk; chunks come in order."""
        if self.paths[-1:] != [chunk.path]:
            self.paths.append(chunk.path)
        self.documents[chunk.numbers] += chunk.documents
        new = self.first[0, chunk.numbers] < 0
        places = (np.full(len(chunk.numbers), len(self.paths) - 1), chunk.lines, chunk.offsets)
        self.first[:, chunk.numbers[new]] = np.stack(places)[:, new]
        self.sharing += chunk.sharing
        self.total += chunk.total
        self.words += chunk.words

    def find_first(self, number: int) -> DocumentLine:
        """Return the first document that has a sequence, which must be in one."""
        file, line, offset = self.first[:, number].tolist()
        return DocumentLine(self.paths[file], line, offset)


def count_overlap(sought: Sought, documents: Sequence[Path], workers: int | None = None) -> Overlap:
    """Return how many documents have each sequence of words that is sought, and the first that has it.

    Args:
        documents: files of documents, JSON lines; read in this order.
        workers: processes; None: one for each core. The count changes no figure.

    Raises:
        RelmError: a line is not a document, or a worker died.
    """
    overlap = Overlap(len(sought))
    size = sum(path.stat().st_size for path in documents)
    processes = min(usable_cores() if workers is None else workers, 1 + size // BYTES_PER_WORKER)
    task = "comparing documents with a test"
    with ProgressBar(total=size, desc=task, unit="B", unit_scale=True, disable=None) as progress:
        for chunk in ordered_map(functools.partial(find_overlap, sought), read_chunks(documents), processes, task):
            overlap.add(chunk)
            progress.update(chunk.size)
    return overlap


def find_overlap(sought: Sought, lines: Lines) -> ChunkOverlap:
    """Return what some documents share with a test."""
    content = lines.lines
    sizes = np.fromiter(map(len, content), dtype=np.int64, count=len(content))
    words = hash_words(list(document_texts(content, lines.path, lines.first)))
    numbers, documents = _unique_pairs(*sought.find(words))
    found, firsts, counts = np.unique(numbers, return_index=True, return_counts=True)
    places = documents[firsts]
    return ChunkOverlap(
        path=lines.path,
        size=lines.size,
        numbers=found,
        documents=counts,
        lines=lines.first + places,
        offsets=lines.start + (np.cumsum(sizes) - sizes)[places],
        sharing=len(np.unique(documents)),
        total=len(content),
        words=len(words.hashes),
    )
