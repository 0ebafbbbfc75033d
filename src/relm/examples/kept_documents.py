"""Documents without those of a list, which `relm list-removed` writes."""

import collections
import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import checked_sidecar, sidecar_of, write_sidecar
from relm.corpus.documents import Document, DocumentCounts, encode_document, parse_document, split_files
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.examples.documents import Lines, checked_documents, counts_of, document_texts, read_chunks
from relm.examples.overlap import BYTES_PER_WORKER
from relm.limits import usable_cores
from relm.progress import ProgressBar

_AGAIN = "list them again: relm list-removed"


class ListedDocument(NamedTuple):
    """The fate of a listed document."""

    reason: str
    """`duplicate`, or the name of a test."""
    pieces: list[tuple[int, int]]
    """The first and last characters of the pieces that stay; none if the document goes."""


class _Kept(NamedTuple):
    """The documents of a chunk that stay."""

    size: int
    """Bytes of the whole chunk."""
    content: bytes
    counts: DocumentCounts


def remove_listed(documents: Path, removed: Path, output: Path, workers: int | None = None) -> str:
    """Write the documents of a file that a list does not remove, in their order, and return a sentence about them.

    Of a document from which passages are cut, each piece is a document, named ID:CHARACTER by its first character, counted from
    0. The sidecar has the facts that `relm extract` writes, and how many documents were removed, and how many cut, by reason.

    Args:
        documents: a file of documents, JSON lines.
        removed: the list, of this file alone or of others too.
        output: a file of documents.
        workers: processes; None: one for each core. The count changes no byte.

    Raises:
        RelmError: the list was not made from this file, or a file is damaged.
    """
    listed = read_removed(documents, removed)
    kept = DocumentCounts()
    with split_files({"kept": output}) as files:
        for part in _read_kept(documents, listed, workers):
            files["kept"].write(part.content)
            kept.documents += part.counts.documents
            kept.words += part.counts.words
            kept.bytes += part.counts.bytes
    gone = collections.Counter(removal.reason for removal in listed.values() if not removal.pieces)
    cut = collections.Counter(removal.reason for removal in listed.values() if removal.pieces)
    skipped = checked_sidecar(documents).get("skipped") if sidecar_of(documents).exists() else None
    write_sidecar(
        output,
        documents=kept.documents,
        words=kept.words,
        bytes=kept.bytes,
        removed=dict(sorted(gone.items())),
        **({"cut": dict(sorted(cut.items()))} if cut else {}),
        **({} if skipped is None else {"skipped": skipped}),
    )
    by_reason = "".join(f", {reason} {count:,}" for reason, count in sorted(gone.items()))
    cuts = f", cut {cut.total():,}" if cut else ""
    return f"kept {kept.documents:,} documents with {kept.words:,} words; removed {gone.total():,}{by_reason}{cuts}; {output}"


def read_removals(removed: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a list, which has been compared with its sidecar: `file`, `line`, `reason`, `of`, `text`, `kept`."""
    with open(removed, "rb") as lines:
        for number, line in enumerate(lines, 1):
            yield _parse(line, f"{removed}, line {number}")


def read_removed(documents: Path, removed: Path) -> dict[int, ListedDocument]:
    """Return line -> reason and pieces of each document of a file that a list removes or cuts."""
    if not removed.exists():
        raise RelmError(f"{removed}: no such file; {_AGAIN}")
    sources = checked_sidecar(removed).get("sources")
    if not isinstance(sources, dict):
        raise RelmError(f"{sidecar_of(removed)}: names no files of documents, as that of a list does; {_AGAIN}")
    found, _ = checked_documents(documents)
    if sources.get(documents.name) != found:
        listed = sources.get(documents.name, f"none; it has {', '.join(sources)}")
        raise RelmError(f"{documents}: sha256 is {found}, {removed} was made from {listed}; {_AGAIN}")
    entries = (entry for entry in read_removals(removed) if entry["file"] == documents.name)
    return {
        entry["line"]: ListedDocument(entry["reason"], [(start, end) for start, end in entry.get("kept", ())])
        for entry in entries
    }


def _parse(line: bytes, location: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
        texts = [entry[key] for key in ("file", "reason", "of", "text")]
        pieces = [place for start, end in entry.get("kept", ()) for place in (start, end)]
        if all(type(number) is int for number in (entry["line"], *pieces)) and all(isinstance(text, str) for text in texts):
            return dict(entry)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise RelmError(
        f"{location}: expected an object with file, line, reason, of and text (and kept), found {line[:99]!r}; {_AGAIN}"
    )


def _read_kept(documents: Path, listed: Mapping[int, ListedDocument], workers: int | None) -> Iterator[_Kept]:
    size = documents.stat().st_size
    processes = min(usable_cores() if workers is None else workers, 1 + size // BYTES_PER_WORKER)
    task = f"removing documents from {documents}"
    with ProgressBar(total=size, desc=task, unit="B", unit_scale=True, disable=None) as progress:
        for part in ordered_map(functools.partial(_keep, listed), read_chunks([documents]), processes, task):
            yield part
            progress.update(part.size)


def _keep(listed: Mapping[int, ListedDocument], lines: Lines) -> _Kept:
    content: list[bytes] = []
    texts: list[str] = []
    every = lines.lines
    for number, line, text in zip(
        itertools.count(lines.first), every, document_texts(every, lines.path, lines.first), strict=False
    ):
        if number not in listed:
            content.append(line)
            texts.append(text)
            continue
        document = parse_document(line, f"{lines.path}, line {number}")
        for start, end in listed[number].pieces:
            texts.append(text[start:end])
            content.append(encode_document(Document(f"{document.id}:{start}", document.title, text[start:end])).line)
    return _Kept(lines.size, b"".join(content), DocumentCounts(len(texts), *counts_of(texts)))
