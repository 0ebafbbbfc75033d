"""Contamination: how many items of a published test share 13 words in a row with the training documents."""

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from relm.artifact import write_json
from relm.corpus.documents import parse_document
from relm.corpus.ngrams import Integers, hash_ngrams, hash_words, split_words
from relm.errors import RelmError
from relm.evaluation.evaluated_items import Item, read_items
from relm.examples.documents import checked_documents
from relm.examples.overlap import LONGEST, SHORTEST, DocumentLine, ItemNGrams, Overlap, Sought, count_overlap, seek_items

# Shared items that are shown, and characters of a document around the words that are shared.
SAMPLES, AROUND = 10, 100
LONGEST_SHOWN, MOST_WORDS = 300, 40
DESCRIPTION = (
    f"Items of the test that share {LONGEST} words in a row with a training document, in lower case and without punctuation "
    f"(the length of GPT-3's paper, the words of GPT-2's). A text of {SHORTEST} to {LONGEST - 1} words is sought as a whole, "
    "and a shorter one not at all."
)


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

    Args:
        file: the test's file.
        form: its format, one of `relm.recipes.evaluation.published_tests.ITEM_FORMATS`.
        documents: files of documents, JSON lines.
        output: the JSON file; the test is named after it.
        text_key: for lambada, the key of a passage.
        file_sha256: the expected sha256 of the file; None: any.
        workers: processes; None: one for each core. The count changes no byte.

    Raises:
        RelmError: a file has another sha256 or another form, nothing in it is long enough, or there are no documents.
    """
    started = perf_counter()
    items, sha256 = read_items(file, file_sha256, form, text_key)
    sought = seek_items([item.texts for item in items])
    if not len(sought.sought):
        raise RelmError(
            f"{file}: none of its {len(items):,} items has a text of {SHORTEST} words or more, so none is sought; is --format "
            "that of the file?"
        )
    sources = {path.name: checked_documents(path)[0] for path in documents}
    overlap = count_overlap(sought.sought, documents, workers)
    if not overlap.total:
        raise RelmError(f"{', '.join(map(str, documents))}: no documents; give those that the model was trained on")
    found = count_figures(sought, overlap, len(items))
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
        "figures": found,
        "samples": list_samples(items, sought, overlap),
    }
    write_json(output, content)
    rate = sum(path.stat().st_size for path in documents) / 1e6 / (perf_counter() - started)
    return (
        f"{found['shared_items']:,} of {found['items']:,} items ({found['share']:.2%}) share {LONGEST} words with "
        f"{found['sharing_documents']:,} of {found['documents']:,} documents; {found['too_short']:,} items are too short to be "
        f"sought; {rate:,.0f} MB/s"
    )


def count_figures(sought: ItemNGrams, overlap: Overlap, items: int) -> dict[str, float | int]:
    """Return the counts of items and documents."""
    shared = _find_shared(sought, overlap)
    return {
        "items": items,
        "shared_items": len(shared),
        "share": len(shared) / items,
        "short_items": int(sought.whole.sum()),
        "shared_short_items": int(sought.whole[shared].sum()),
        "too_short": items - len(np.unique(sought.items)),
        "documents": overlap.total,
        "sharing_documents": overlap.sharing,
        "words": overlap.words,
    }


def _find_shared(sought: ItemNGrams, overlap: Overlap) -> Integers:
    """Return the index of each item of which a document has a sequence, ascending."""
    shared: Integers = np.unique(sought.items[overlap.documents[sought.numbers] > 0])
    return shared


# --- samples -----------------------------------------------------------------------------------------------------------------


def list_samples(items: Sequence[Item], sought: ItemNGrams, overlap: Overlap) -> list[dict[str, Any]]:
    """Return some of the shared items, evenly spread, each with the first document that shares words with it."""
    shared = _find_shared(sought, overlap)
    count = min(SAMPLES, len(shared))
    chosen = [int(shared[number * len(shared) // count]) for number in range(count)]
    return [_sample(items[item], sought.numbers[sought.items == item], sought.sought, overlap) for item in chosen]


def _sample(item: Item, numbers: Integers, sought: Sought, overlap: Overlap) -> dict[str, Any]:
    shared = [number for number in numbers.tolist() if overlap.documents[number]]
    lines = {sought.sequence(number): overlap.find_first(number) for number in shared}
    text, words, line = _find_run(item, lines)
    with open(line.path, "rb") as file:
        file.seek(line.offset)
        document = parse_document(file.readline(), f"{line.path}, line {line.line}")
    return {
        "item": item.where,
        "text": text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…",
        "words": " ".join(words),
        "document": f"{line.path.name}, line {line.line}",
        "title": document.title,
        "passage": find_passage(words, document.text),
    }


def _find_run(item: Item, lines: Mapping[tuple[int, int], DocumentLine]) -> tuple[str, list[str], DocumentLine]:
    """Return the text of an item that shares words with a document, the first of these words in a row, and the document.

    Args:
        lines: count of words and hash of each of the item's sequences that is in a document -> the first such document.
    """
    for text in item.texts:
        words = split_words(text)
        n = min(len(words), LONGEST)
        found = [lines.get((n, hash_)) for hash_ in hash_ngrams(hash_words([text]), n).hashes.tolist()] if n else []
        for start, line in enumerate(found):
            if line is not None:
                following = next(len(list(run)) for _, run in itertools.groupby(found[start:])) - 1
                return text, words[start : start + min(n + following, MOST_WORDS)], line
    raise AssertionError("no text of the item has a sequence of it")


def find_passage(words: Sequence[str], document: str) -> str:
    """Return the text of a document around words that it has one after the other, with `AROUND` characters on each side.

    >>> find_passage(["well", "known"], "He is Well-known.")
    'He is Well-known.'
    """
    text = unicodedata.normalize("NFC", document)
    found = re.search(r"[\W_]+".join(map(re.escape, words)), text, re.IGNORECASE)
    if found is None:  # of a letter whose small form has several characters
        return " ".join(words)
    start, end = max(0, found.start() - AROUND), found.end() + AROUND
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
