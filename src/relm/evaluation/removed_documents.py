"""The list of documents that are to be removed: duplicates, and those that share words with a test, or passages of the latter.

All documents are read once, in the order in which the files are given, and the first of several duplicates stays. Memory grows
by 24 bytes with each document, and not with its text. Where passages are cut out, the documents that have one are read again.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import atomic_file, canonical_json, write_sidecar
from relm.corpus.documents import parse_document
from relm.corpus.ngrams import Integers, WordRule, hash_words
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.evaluation.evaluated_items import read_items
from relm.evaluation.sought_passages import SoughtPassages, TestSequences
from relm.examples.cut_passages import Piece
from relm.examples.documents import Lines, checked_documents, document_texts, read_chunks
from relm.examples.duplicates import DUPLICATE, Digests, digest_texts, find_duplicates
from relm.examples.overlap import BYTES_PER_WORKER, SHORTEST, Sought, seek_items
from relm.limits import usable_cores
from relm.progress import ProgressBar

SHOWN = 100
"""Characters of a removed document that are in the list."""


class ComparedTest(NamedTuple):
    """A published test with which documents are compared."""

    name: str
    """The name under which removals are counted."""
    form: str
    """One of `relm.recipes.evaluation.published_tests.ITEM_FORMATS`."""
    file: Path
    text_key: str = "text"
    """For lambada, the key of a passage."""


class _Marks(NamedTuple):
    """Duplicates and shared words in a chunk of documents."""

    lines: Lines
    digests: Digests
    """(documents, 2); (documents, 0) where duplicates are not sought."""
    tests: Integers
    """(documents,) number of the first test with which the document shares words; -1: with none."""
    sequences: Integers
    """(documents,) the lowest number of a shared sequence of that test; -1: none."""
    passages: dict[int, list[str]]
    """Document -> the sequences that it has; only where passages are cut out."""


class _Entry(NamedTuple):
    """A document that is to be removed, or to be cut."""

    number: int
    reason: str
    of: str
    kept: list[Piece] | None = None
    """The pieces that stay; None: passages are not cut out."""


@dataclass(frozen=True)
class _Finder:
    """A function of a chunk of documents that finds what is sought; each worker gets a copy."""

    duplicates: bool
    tests: Sequence[Sought]
    passages: SoughtPassages | None

    def __call__(self, lines: Lines) -> _Marks:
        texts = list(document_texts(lines.lines, lines.path, lines.first))
        digests = digest_texts(texts) if self.duplicates else np.empty((len(texts), 0), dtype=np.uint64)
        tests, sequences = np.full((2, len(texts)), -1, dtype=np.int64)
        if self.passages is not None:
            return _Marks(lines, digests, tests, sequences, self.passages.find(texts))
        words = hash_words(texts)
        for number, sought in enumerate(self.tests):
            numbers, owners = sought.find(words)
            lowest = np.full(len(texts), len(sought), dtype=np.int64)
            np.minimum.at(lowest, owners, numbers)
            new = (lowest < len(sought)) & (tests < 0)
            tests[new], sequences[new] = number, lowest[new]
        return _Marks(lines, digests, tests, sequences, {})


def list_removed(
    documents: Sequence[Path],
    output: Path,
    duplicates: bool,
    tests: Sequence[ComparedTest],
    workers: int | None = None,
    cut: bool = False,
) -> str:
    """List the documents that are to be removed from some files, and return a sentence about them.

    The list is JSON lines in the order of the documents, objects with `file`, `line`, `reason`, `of`, and `text`, the text's
    first characters. The reason is `duplicate`, and then `of` is the document that stays; or it is a test's name, and then `of`
    is the first item with which the document shares words. Its sidecar has the sha256 of each file of documents, their count,
    and that of the removed ones by reason.

    Where passages are cut out, the list has all documents that lose one, with `kept`, the first and last characters of the
    pieces that stay; a document without a piece is removed, and the sidecar also counts the others, under `cut`.

    Args:
        documents: files of documents, JSON lines, of different names; of duplicates the first stays.
        output: the list.
        duplicates: remove all documents but the first of those that are equal but for case and white space.
        tests: remove documents that share 13 words in a row with an item of a test, as `relm contamination` counts them.
        workers: processes; None: one for each core. The count changes no byte.
        cut: instead of removing such documents, cut the passages out, by the rules of `relm.examples.cut_passages`.

    Raises:
        RelmError: there is nothing to seek, two files have one name, a file is damaged, or no document would be left.
    """
    _require_different_names(documents, tests)
    if not duplicates and not tests:
        raise RelmError("list-removed: nothing is sought; give --duplicates, or a test by --test")
    if cut and not tests:
        raise RelmError("list-removed: --cut-passages: no test has passages; name one by --test")
    sought = [_seek(test, WordRule.PYTHON if cut else WordRule.UNICODE) for test in tests]
    passages = SoughtPassages.of(sought) if cut else None
    sources = {path.name: checked_documents(path)[0] for path in documents}
    find = _Finder(duplicates, [test.ngrams.sought for test in sought], passages)
    found = _Found(list(_find_marks(documents, find, workers)), duplicates)
    removed = dict.fromkeys([*([DUPLICATE] if duplicates else []), *(test.name for test in sought)], 0)
    shortened = dict.fromkeys([test.name for test in sought] if cut else [], 0)
    with atomic_file(output) as file:
        for entry in found.list_entries(sought) if passages is None else found.list_cuts(passages):
            name, line = found.locate(entry.number)
            (shortened if entry.kept else removed)[entry.reason] += 1
            text = found.read_text(entry.number)[:SHOWN]
            shown = {"file": name, "line": line, "reason": entry.reason, "of": entry.of, "text": text}
            file.write(f"{canonical_json(shown if entry.kept is None else {**shown, 'kept': entry.kept})}\n".encode())
        total = len(found.firsts)
        if sum(removed.values()) == total:
            raise RelmError(
                f"{', '.join(map(str, documents))}: none of {total:,} documents would be left; seek less, or give "
                "more documents"
            )
    compared = {test.name: test.sha256 for test in sought}
    counts: dict[str, Any] = {"removed": removed, **({"cut": shortened} if cut else {})}
    write_sidecar(output, documents=total, **counts, sources=sources, tests=compared)
    by_reason = ", ".join(f"{reason} {count:,}" for reason, count in removed.items())
    cuts = f"; of {sum(shortened.values()):,} others pieces stay" if cut else ""
    return f"{sum(removed.values()):,} of {total:,} documents are to be removed: {by_reason}{cuts}; {output}"


def _require_different_names(documents: Sequence[Path], tests: Sequence[ComparedTest]) -> None:
    names = [path.name for path in documents]
    if double := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise RelmError(f"{double}: two files of documents have this name, by which the list tells them apart; rename one")
    names = [DUPLICATE, *(test.name for test in tests)]
    if double := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise RelmError(f"{double}: removals are counted by this name, which two reasons have; name a test otherwise")


def _seek(test: ComparedTest, rule: WordRule) -> TestSequences:
    items, sha256 = read_items(test.file, None, test.form, test.text_key)
    ngrams = seek_items([item.texts for item in items], rule)
    if not len(ngrams.sought):
        raise RelmError(
            f"{test.file}: none of its {len(items):,} items has a text of {SHORTEST} words or more, so none is sought; is "
            f"{test.form} the format of the file?"
        )
    return TestSequences(test.name, items, ngrams, sha256)


def _find_marks(documents: Sequence[Path], find: _Finder, workers: int | None) -> Iterator[_Marks]:
    size = sum(path.stat().st_size for path in documents)
    processes = min(usable_cores() if workers is None else workers, 1 + size // BYTES_PER_WORKER)
    task = "seeking documents to remove"
    with ProgressBar(total=size, desc=task, unit="B", unit_scale=True, disable=None) as progress:
        for marks in ordered_map(functools.partial(find), read_chunks(documents), processes, task):
            yield marks
            progress.update(marks.lines.size)


class _Found:
    """Duplicates and shared words in all documents, which are numbered in their order."""

    def __init__(self, marks: Sequence[_Marks], duplicates: bool) -> None:
        nothing = np.empty(0, dtype=np.int64)
        self.tests = np.concatenate([nothing, *(mark.tests for mark in marks)])
        self.sequences = np.concatenate([nothing, *(mark.sequences for mark in marks)])
        self.firsts = np.arange(len(self.tests))
        if duplicates and marks:
            self.firsts = find_duplicates(np.concatenate([mark.digests for mark in marks]))
        self._chunks = [mark.lines for mark in marks]
        self._starts = np.cumsum([0, *(len(mark.tests) for mark in marks)])
        self._read: tuple[int, list[bytes]] = (-1, [])
        self._passages = {
            first + position: sequences
            for first, mark in zip(self._starts.tolist(), marks, strict=False)
            for position, sequences in mark.passages.items()
        }

    def list_entries(self, sought: Sequence[TestSequences]) -> Iterator[_Entry]:
        """Yield the duplicates, and the documents that share words with a test, in the order of the documents."""
        for number in np.flatnonzero(self._is_duplicate() | (self.tests >= 0)).tolist():
            if (entry := self._find_duplicate(number)) is not None:
                yield entry
            else:
                test = sought[int(self.tests[number])]
                yield _Entry(number, test.name, test.find_item(int(self.sequences[number])).where)

    def list_cuts(self, passages: SoughtPassages) -> Iterator[_Entry]:
        """Yield the duplicates, and the other documents that lose a passage, in the order of the documents."""
        duplicates = set(np.flatnonzero(self._is_duplicate()).tolist())
        rare = passages.without_common(each for number, each in self._passages.items() if number not in duplicates)
        for number in sorted(duplicates | self._passages.keys()):
            if (entry := self._find_duplicate(number)) is not None:
                yield entry
            elif (cut := rare.cut(self.read_text(number))) is not None:
                yield _Entry(number, *rare.origins[cut.first], kept=cut.pieces)

    def _is_duplicate(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.firsts != np.arange(len(self.firsts))
        return found

    def _find_duplicate(self, number: int) -> _Entry | None:
        original = int(self.firsts[number])
        return None if original == number else _Entry(number, DUPLICATE, "{}, line {}".format(*self.locate(original)))

    def locate(self, number: int) -> tuple[str, int]:
        """Return the name of a document's file, and its line, counted from 1."""
        chunk, position = self._place(number)
        return self._chunks[chunk].path.name, self._chunks[chunk].first + position

    def read_text(self, number: int) -> str:
        """Return the text of a document, read again from its file; a chunk is read once if documents come in order."""
        chunk, position = self._place(number)
        if self._read[0] != chunk:
            self._read = chunk, self._chunks[chunk].lines
        return parse_document(self._read[1][position], "{}, line {}".format(*self.locate(number))).text

    def _place(self, number: int) -> tuple[int, int]:
        """Return the number of a document's chunk, and its position there."""
        chunk = int(np.searchsorted(self._starts, number, side="right")) - 1
        return chunk, number - int(self._starts[chunk])
