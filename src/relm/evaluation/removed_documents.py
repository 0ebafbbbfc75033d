"""The list of documents to remove: duplicates, and those from which passages of tests are cut.

All documents are read once, in the order of the files, and the first of several duplicates stays. Memory grows by 8 bytes with
each document, whatever its text. Documents that have a passage are read again.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relm.artifact import atomic_file, canonical_json, write_sidecar
from relm.corpus.documents import parse_document
from relm.errors import RelmError
from relm.evaluation.evaluated_items import read_sought
from relm.examples.cut_passages import COMMON, WordSequences, cut_passages
from relm.examples.documents import Lines, checked_documents
from relm.examples.overlap import DUPLICATE, Compared, DocumentComparison, compare, find_duplicates

SHOWN = 100
"""Characters of a removed document that are in the list."""
Origins = Mapping[str, tuple[str, str]]
"""Sequence of words -> the name of the first test that has it, and the first of its items."""


class ComparedTest(NamedTuple):
    """A published test to compare documents with."""

    name: str
    """The name of its count of removals."""
    form: str
    """One of `relm.recipes.evaluation.published_tests.ITEM_FORMATS`."""
    file: Path
    text_key: str = "text"
    """For lambada, the passage's key."""


def list_removed(
    documents: Sequence[Path], output: Path, duplicates: bool, tests: Sequence[ComparedTest], workers: int | None = None
) -> str:
    """List the documents to remove from some files, and return a sentence about them.

    The list is JSON lines in the order of the documents: objects with `file`, `line`, `reason`, `of`, and `text`, the first
    characters. For the reason `duplicate`, `of` is the document that stays; duplicates are equal but for case and white space.
    Any other reason is a test's name. Then `of` is the first item whose passage the document has, and `kept` has the first and
    last characters of the pieces that stay after a cut by the rules of `relm.examples.cut_passages`. If no piece stays, the
    document is removed. The sidecar has the sha256 of each file of documents, their number, and the numbers of removed and of
    cut documents by reason. The number of workers changes no byte.
    """
    _require_different([path.name for path in documents], "rename one of the files of documents")
    _require_different([DUPLICATE, *(test.name for test in tests)], "rename one of the tests")
    if not duplicates and not tests:
        raise RelmError("list-removed: nothing to do; pass --duplicates or --test")
    origins: dict[str, tuple[str, str]] = {}
    read: dict[str, str] = {}
    for test in tests:
        items, read[test.name] = read_sought(test.file, test.form, test.text_key)
        for item, sequences in items:
            origins |= {sequence: (test.name, item.where) for sequence in sequences if sequence not in origins}
    sources = {path.name: checked_documents(path)[0] for path in documents}
    found = list(compare(documents, DocumentComparison(WordSequences.of(origins), duplicates), workers))
    removed = dict.fromkeys([*([DUPLICATE] if duplicates else []), *read], 0)
    cut = dict.fromkeys(read, 0)
    total = sum(compared.documents for _, compared in found)
    with atomic_file(output) as file:
        for entry in _list_entries(found, origins, duplicates):
            (cut if entry.get("kept") else removed)[entry["reason"]] += 1
            file.write(f"{canonical_json(entry)}\n".encode())
        if sum(removed.values()) == total:
            raise RelmError(
                f"{', '.join(map(str, documents))}: none of {total:,} documents would be left; compare with fewer tests, or "
                "give more documents"
            )
    write_sidecar(output, documents=total, removed=removed, **({"cut": cut} if cut else {}), sources=sources, tests=read)
    by_reason = ", ".join(f"{reason} {count:,}" for reason, count in removed.items())
    cuts = f"; pieces of {sum(cut.values()):,} others stay" if cut else ""
    return f"{sum(removed.values()):,} of {total:,} documents will be removed: {by_reason}{cuts}; {output}"


def _require_different(names: Sequence[str], remedy: str) -> None:
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise RelmError(f"{name}: duplicate name; {remedy}")


def _list_entries(found: Sequence[tuple[Lines, Compared]], origins: Origins, duplicates: bool) -> Iterator[dict[str, Any]]:
    """Yield the entries of the list; a sequence in `COMMON` documents or more does not count as a passage."""
    starts = np.cumsum([0, *(compared.documents for _, compared in found)])
    firsts = find_duplicates(np.concatenate([compared.digests for _, compared in found])) if duplicates and found else None
    copies = np.zeros(starts[-1], np.bool_) if firsts is None else firsts != np.arange(starts[-1])
    counts = collections.Counter(
        sequence
        for start, (_, compared) in zip(starts.tolist(), found, strict=False)
        for position, sequences in compared.found.items()
        if not copies[start + position]
        for sequence in sequences
    )
    rare = WordSequences.of(sequence for sequence in origins if counts[sequence] < COMMON)
    for start, (lines, compared) in zip(starts.tolist(), found, strict=False):
        listed = sorted({*np.flatnonzero(copies[start : start + compared.documents]).tolist(), *compared.found})
        content = lines.lines if listed else []
        for position in listed:
            line = lines.first + position
            text = parse_document(content[position], f"{lines.path}, line {line}").text
            entry: dict[str, Any] = {"file": lines.path.name, "line": line, "text": text[:SHOWN]}
            if copies[start + position]:
                assert firsts is not None
                original = int(firsts[start + position])
                chunk = int(np.searchsorted(starts, original, side="right")) - 1
                where = found[chunk][0]
                yield entry | {"reason": DUPLICATE, "of": f"{where.path.name}, line {where.first + original - starts[chunk]}"}
            elif cut := cut_passages(text, rare):
                yield entry | dict(zip(("reason", "of"), origins[cut.first], strict=True)) | {"kept": cut.pieces}
