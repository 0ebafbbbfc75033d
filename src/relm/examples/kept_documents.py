"""Write documents without those that a list of `relm list-removed` names."""

import collections
import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import checked_sidecar, sidecar_of, write_sidecar
from relm.corpus.documents import Document, DocumentCounts, encode_document, parse_document, split_files
from relm.errors import RelmError
from relm.examples.documents import Lines, checked_documents, counts_of, read_document_texts
from relm.examples.mapped_documents import map_documents


class _Kept(NamedTuple):
    """The documents of a chunk that stay."""

    content: bytes
    counts: DocumentCounts


def remove_listed(documents: Path, removed: Path, output: Path, workers: int | None = None) -> str:
    """Write the documents of a file that a list does not remove, in their order, and return a sentence about them.

    If passages are cut out of a document, each piece becomes a document ID:CHARACTER, after its first character, counted from
    0. The sidecar has the facts that `relm extract` writes, and by reason how many documents were removed and how many cut. The
    number of workers (None: one per core) changes no byte.
    """
    sources, (found, _) = checked_sidecar(removed).get("sources", {}), checked_documents(documents)
    if (listed_sha256 := sources.get(documents.name)) != found:
        raise RelmError(
            f"{documents}: sha256 is {found}, but {removed} was made from {listed_sha256}; run relm list-removed again"
        )
    with open(removed, "rb") as lines:
        listed = {entry["line"]: entry for entry in map(json.loads, lines) if entry["file"] == documents.name}
    kept = DocumentCounts()
    with split_files({"kept": output}) as files:
        keep = functools.partial(_keep, {line: entry.get("kept", ()) for line, entry in listed.items()})
        for _, part in map_documents(keep, [documents], workers, f"removing documents from {documents}"):
            files["kept"].write(part.content)
            kept.documents += part.counts.documents
            kept.words += part.counts.words
            kept.bytes += part.counts.bytes
    gone, cut = (
        collections.Counter(entry["reason"] for entry in listed.values() if bool(entry.get("kept")) is stays)
        for stays in (False, True)
    )
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


def _keep(listed: Mapping[int, Any], lines: Lines) -> _Kept:
    content: list[bytes] = []
    texts: list[str] = []
    every = lines.lines
    for number, line, text in zip(
        itertools.count(lines.first), every, read_document_texts(every, lines.path, lines.first), strict=False
    ):
        if number not in listed:
            content.append(line)
            texts.append(text)
            continue
        document = parse_document(line, f"{lines.path}, line {number}")
        for start, end in listed[number]:
            texts.append(text[start:end])
            content.append(encode_document(Document(f"{document.id}:{start}", document.title, text[start:end])).line)
    return _Kept(b"".join(content), DocumentCounts(len(texts), *counts_of(texts)))
