"""Contamination: how many items of a published test share 13 words in a row with the training documents."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from relm.artifact import write_json
from relm.corpus.documents import parse_document
from relm.errors import RelmError
from relm.evaluation.evaluated_items import Item, read_sought
from relm.examples.cut_passages import LONGEST, SHORTEST, WordSequences, find_every, list_sequences
from relm.examples.documents import Lines, checked_documents
from relm.examples.overlap import DocumentComparison, compare

# Shared items in the result, and characters of a document around the shared words.
SAMPLES, AROUND = 10, 100
LONGEST_SHOWN, MOST_WORDS = 300, 40
DESCRIPTION = (
    f"Items of the test that share {LONGEST} words in a row with a training document, in lower case and without punctuation "
    f"(the length of GPT-3's paper, the words of GPT-2's). A text of {SHORTEST} to {LONGEST - 1} words is sought as a whole, "
    "and a shorter one not at all."
)
Place = tuple[Lines, int]
"""Some lines of documents, and the position of a document in them."""


def count_contamination(
    file: Path,
    form: str,
    documents: Sequence[Path],
    output: Path,
    text_key: str = "text",
    file_sha256: str | None = None,
    workers: int | None = None,
) -> str:
    """Count the items of a test that share words with training documents, and write the counts with some of the items.

    `form` and `text_key` are those of `read_items`; the output's name is the test's. The number of workers changes no byte.
    """
    started = perf_counter()
    items, sha256 = read_sought(file, file_sha256, form, text_key)
    sources = {path.name: checked_documents(path)[0] for path in documents}
    figures, shared, firsts = _count(items, documents, workers)
    count = min(SAMPLES, len(shared))
    content = {
        "test": output.stem,
        "protocol": {
            "in_words": DESCRIPTION,
            "format": form,
            "file": file.name,
            "file_sha256": sha256,
            **({"text_key": text_key} if form == "lambada" else {}),
            "words": LONGEST,
            "words_of_short_texts": SHORTEST,
            "documents": sources,
        },
        "figures": figures,
        "samples": [_sample(shared[number * len(shared) // count], firsts) for number in range(count)],
    }
    write_json(output, content)
    rate = sum(path.stat().st_size for path in documents) / 1e6 / (perf_counter() - started)
    return (
        f"{len(shared):,} of {len(items):,} items ({figures['share']:.2%}) share {LONGEST} words with "
        f"{figures['sharing_documents']:,} of {figures['documents']:,} documents; {figures['too_short']:,} items are too short "
        f"to compare; {rate:,.0f} MB/s"
    )


def _count(
    items: Sequence[tuple[Item, Sequence[str]]], documents: Sequence[Path], workers: int | None
) -> tuple[dict[str, float], list[Item], dict[str, Place]]:
    """Return the counts, the items that share words with documents, and where each shared sequence of words is first."""
    sought = WordSequences.of(sequence for _, sequences in items for sequence in sequences)
    firsts: dict[str, Place] = {}
    total = sharing = words = 0
    for lines, compared in compare(documents, DocumentComparison(sought, find_every), workers):
        total, sharing, words = total + compared.documents, sharing + len(compared.found), words + compared.words
        for position, found in compared.found.items():
            for sequence in found:
                firsts.setdefault(sequence, (lines, position))
    if not total:
        raise RelmError(f"{', '.join(map(str, documents))}: no documents; give those that the model was trained on")
    shared = [(item, sequences) for item, sequences in items if not firsts.keys().isdisjoint(sequences)]
    figures = {
        "items": len(items),
        "shared_items": len(shared),
        "share": len(shared) / len(items),
        "short_items": sum(_is_short(sequences) for _, sequences in items),
        "shared_short_items": sum(_is_short(sequences) for _, sequences in shared),
        "too_short": sum(not sequences for _, sequences in items),
        "documents": total,
        "sharing_documents": sharing,
        "words": words,
    }
    return figures, [item for item, _ in shared], firsts


def _is_short(sequences: Sequence[str]) -> bool:
    """Return whether a text of the item is sought as a whole."""
    return any(sequence.count(" ") < LONGEST - 1 for sequence in sequences)


def _sample(item: Item, firsts: Mapping[str, Place]) -> dict[str, Any]:
    """Return a shared item with the first document that shares words with it, and the first of these words in a row."""
    text = next(text for text in item.texts if not firsts.keys().isdisjoint(list_sequences(text)))
    runs = itertools.groupby(list_sequences(text), firsts.get)
    (lines, position), (first, *following) = next((place, run) for place, run in runs if place is not None)
    words = [*first.split(" "), *(sequence.rpartition(" ")[2] for sequence in following)][:MOST_WORDS]
    line = lines.first + position
    document = parse_document(lines.lines[position], f"{lines.path}, line {line}")
    return {
        "item": item.where,
        "text": text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…",
        "words": " ".join(words),
        "document": f"{lines.path.name}, line {line}",
        "title": document.title,
        "passage": find_passage(words, document.text),
    }


def find_passage(words: Sequence[str], document: str) -> str:
    """Return the part of a document with these words in a row, and `AROUND` characters on each side.

    >>> find_passage(["well", "known"], "He is Well-known.")
    'He is Well-known.'
    """
    found = re.search(r"\W+".join(map(re.escape, words)), document, re.IGNORECASE)
    if found is None:  # a letter's small form has several characters
        return " ".join(words)
    start, end = max(0, found.start() - AROUND), found.end() + AROUND
    return f"{'…' if start else ''}{document[start:end]}{'…' if end < len(document) else ''}"
