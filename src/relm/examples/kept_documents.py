"""Documents without those of a list, which `relm list-removed` writes."""

import functools
import itertools
import json
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import checked_sidecar, sidecar_of, write_sidecar
from relm.corpus.documents import DocumentCounts, split_files
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.examples.documents import Lines, checked_documents, counts_of, document_texts, read_chunks
from relm.examples.overlap import BYTES_PER_WORKER
from relm.limits import usable_cores
from relm.progress import ProgressBar

_AGAIN = "list them again: relm list-removed"


class _Kept(NamedTuple):
    """The documents of a chunk that stay."""

    size: int
    """Bytes of the whole chunk."""
    content: bytes
    counts: DocumentCounts


def remove_listed(documents: Path, removed: Path, output: Path, workers: int | None = None) -> str:
    """Write the documents of a file that a list does not remove, in their order, and return a sentence about them.

    The sidecar has the facts that `relm extract` writes, and how many documents were removed, by reason.

    Args:
        documents: a file of documents, JSON lines.
        removed: the list, of this file alone or of others too.
        output: a file of documents.
        workers: processes; None: one for each core. The count changes no byte.

    Raises:
        RelmError: the list was not made from this file, or a file is damaged.
    """
    reasons = read_removed(documents, removed)
    kept = DocumentCounts()
    with split_files({"kept": output}) as files:
        for part in _read_kept(documents, frozenset(reasons), workers):
            files["kept"].write(part.content)
            kept.documents += part.counts.documents
            kept.words += part.counts.words
            kept.bytes += part.counts.bytes
    counts: dict[str, int] = {}
    for reason in reasons.values():
        counts[reason] = counts.get(reason, 0) + 1
    skipped = checked_sidecar(documents).get("skipped") if sidecar_of(documents).exists() else None
    write_sidecar(
        output,
        documents=kept.documents,
        words=kept.words,
        bytes=kept.bytes,
        removed=dict(sorted(counts.items())),
        **({} if skipped is None else {"skipped": skipped}),
    )
    by_reason = "".join(f", {reason} {count:,}" for reason, count in sorted(counts.items()))
    return f"kept {kept.documents:,} documents with {kept.words:,} words; removed {len(reasons):,}{by_reason}; {output}"


def read_removals(removed: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a list, which has been compared with its sidecar: `file`, `line`, `reason`, `of`, `text`.

    Raises:
        RelmError: a line is no entry.
    """
    with open(removed, "rb") as lines:
        for number, line in enumerate(lines, 1):
            yield _parse(line, f"{removed}, line {number}")


def read_removed(documents: Path, removed: Path) -> dict[int, str]:
    """Return line -> reason of each document of a file that a list removes.

    Raises:
        RelmError: the list is damaged, or was not made from this file.
    """
    if not removed.exists():
        raise RelmError(f"{removed}: no such file; {_AGAIN}")
    sources = checked_sidecar(removed).get("sources")
    if not isinstance(sources, dict):
        raise RelmError(f"{sidecar_of(removed)}: names no files of documents, as that of a list does; {_AGAIN}")
    found, _ = checked_documents(documents)
    if sources.get(documents.name) != found:
        listed = sources.get(documents.name, f"none; it has {', '.join(sources)}")
        raise RelmError(f"{documents}: sha256 is {found}, {removed} was made from {listed}; {_AGAIN}")
    return {entry["line"]: entry["reason"] for entry in read_removals(removed) if entry["file"] == documents.name}


def _parse(line: bytes, location: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
        texts = [entry[key] for key in ("file", "reason", "of", "text")]
        if type(entry["line"]) is int and all(isinstance(text, str) for text in texts):
            return dict(entry)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise RelmError(f"{location}: expected an object with file, line, reason, of and text, found {line[:99]!r}; {_AGAIN}")


def _read_kept(documents: Path, removed: Set[int], workers: int | None) -> Iterator[_Kept]:
    size = documents.stat().st_size
    processes = min(usable_cores() if workers is None else workers, 1 + size // BYTES_PER_WORKER)
    task = f"removing documents from {documents}"
    with ProgressBar(total=size, desc=task, unit="B", unit_scale=True, disable=None) as progress:
        for part in ordered_map(functools.partial(_keep, removed), read_chunks([documents]), processes, task):
            yield part
            progress.update(part.size)


def _keep(removed: Set[int], lines: Lines) -> _Kept:
    every = lines.lines
    stay = [number not in removed for number in range(lines.first, lines.first + len(every))]
    kept = list(itertools.compress(every, stay))
    texts = list(itertools.compress(document_texts(every, lines.path, lines.first), stay))
    return _Kept(lines.size, b"".join(kept), DocumentCounts(len(kept), *counts_of(texts)))
