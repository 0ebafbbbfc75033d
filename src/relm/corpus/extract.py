"""The step from downloaded bytes to documents."""

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from relm.artifact import write_sidecar
from relm.catalogue import Dataset
from relm.corpus.documents import (
    HELD_OUT,
    TRAIN,
    Counts,
    Document,
    Encoded,
    Skipped,
    encoded,
    fitting_held_out_one_in,
    split_files,
    split_of,
    title_number,
)
from relm.corpus.text_files import names_of_text_files, read_text_files
from relm.corpus.wikipedia import Dump, Page
from relm.corpus.wikitext_markup import plain_text
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.limits import usable_cores

# Characters of wikitext that travel to a worker at once: some 50 ms of work.
BATCH = 300_000

# Why an entry of the source may become no document, by format.
SKIPPED = {"mediawiki_xml": ("redirects", "other_namespaces", "empty", "cut"), "text_files": ("empty",)}

# Of so many documents the titles are remembered, to suggest a working held_out_one_in should a split stay empty.
REMEMBERED = 1000


class Batch(NamedTuple):
    """Pages that one worker takes at once."""

    hidden_namespaces: frozenset[str]
    pages: list[Page | Skipped]


class Tally(NamedTuple):
    """What was written and what was not."""

    counts: dict[str, Counts]
    skipped: dict[str, int]
    numbers: list[int]

    def add(self, document: Encoded, split: str) -> None:
        """Count one more."""
        self.counts[split].add(document)
        if len(self.numbers) < REMEMBERED:
            self.numbers.append(document.number)

    @property
    def documents(self) -> int:
        """Of both splits."""
        return sum(count.documents for count in self.counts.values())


def extract(dataset: Dataset, source: Path, outputs: Mapping[str, Path], documents: int | None, workers: int | None) -> str:
    """Write the documents of one shard, those held out apart, and return a sentence about them.

    The files' bytes do not depend on the number of workers. Their sidecars have the facts documents, words, bytes (of the text
    in UTF-8), and ``skipped``: how many entries of the source became no document, by reason, up to the last document written.

    Args:
        dataset: how the source is read and split.
        source: the downloaded file; for a dataset that is a folder, that folder.
        outputs: the .jsonl file of each split, ``train`` and ``held_out``.
        documents: stop after so many; None: all.
        workers: processes that clean wikitext; None: as many as there are cores.

    Raises:
        RelmError: the source is absent or damaged, a worker died, or a split would have no document.
    """
    started = time.perf_counter()
    tally = Tally({TRAIN: Counts(), HELD_OUT: Counts()}, dict.fromkeys(SKIPPED[dataset.format], 0), [])
    held_out = _held_out_of_folder(source, dataset, documents) if source.is_dir() else None
    outcomes = _outcomes(dataset, source, usable_cores() if workers is None else workers)
    with split_files(outputs) as files, contextlib.closing(outcomes):
        for outcome in outcomes:
            if isinstance(outcome, Skipped):
                tally.skipped[outcome.reason] += 1
                continue
            if held_out is None:
                split = split_of(outcome.number, dataset.one_in)
            else:
                split = HELD_OUT if outcome.number in held_out else TRAIN
            files[split].write(outcome.line)
            tally.add(outcome, split)
            if tally.documents == documents:
                break
        _check_splits(dataset, source, tally)
    for split, path in outputs.items():
        write_sidecar(path, **asdict(tally.counts[split]), skipped=tally.skipped)
    return _sentence(dataset, source, tally, time.perf_counter() - started)


def _held_out_of_folder(folder: Path, dataset: Dataset, documents: int | None) -> frozenset[int]:
    """The `title_number` of each file of a folder that is held out: one in so many with the lowest, so one at least."""
    numbers = sorted(title_number(name) for name in names_of_text_files(dataset, folder)[:documents])
    return frozenset(numbers[: max(1, len(numbers) // dataset.one_in)] if len(numbers) > 1 else ())


def _check_splits(dataset: Dataset, source: Path, tally: Tally) -> None:
    """Raise unless both splits have documents."""
    numbers = tally.numbers
    if dataset.format == "text_files" and len(dataset.files) > 1 and numbers:
        # A shard is one file and so one document: it is the dataset that has two splits.
        numbers = [title_number(name) for name in dataset.files]
    elif all(count.documents for count in tally.counts.values()):
        return
    one_in = dataset.one_in
    held_out = sum(split_of(number, one_in) == HELD_OUT for number in numbers)
    if 0 < held_out < len(numbers):
        return
    if not numbers:
        raise RelmError(f"{source}: there is no document in it{_listed('; skipped: ', tally)}; nothing was written")
    lacking = "left for" if held_out else "held out of"
    fitting = fitting_held_out_one_in(numbers, one_in)
    raise RelmError(
        f"{source}: with held_out_one_in: {one_in}, no document (of {len(numbers)}) is {lacking} training; "
        + (f"set held_out_one_in: {fitting} in the dataset's file" if fitting else "two documents at least are needed")
    )


def _listed(label: str, tally: Tally) -> str:
    found = [f"{reason.replace('_', ' ')} {count:,}" for reason, count in tally.skipped.items() if count]
    return label + ", ".join(found) if found else ""


def _sentence(dataset: Dataset, source: Path, tally: Tally, seconds: float) -> str:
    words = sum(count.words for count in tally.counts.values())
    entries = tally.documents + sum(tally.skipped.values())
    unit, label = ("pages", "; skipped: ") if dataset.format == "mediawiki_xml" else ("files", "; warning: skipped files: ")
    return (
        f"extracted {tally.documents:,} documents with {words:,} words from {source.name}, "
        f"{tally.counts[HELD_OUT].documents:,} of them held out of training{_listed(label, tally)}; "
        f"{entries / max(seconds, 1e-9):,.0f} {unit}/s"
    )


def _outcomes(dataset: Dataset, source: Path, workers: int) -> Generator[Encoded | Skipped, None, None]:
    if dataset.format == "text_files":
        yield from read_text_files(dataset, source)
        return
    if source.is_file():
        workers = min(workers, 1 + source.stat().st_size // BATCH)
    batches = _batches(Dump(source, dataset.ends_mid_page))
    for outcomes in ordered_map(_cleaned, batches, workers, f"extracting {source}"):
        yield from outcomes


def _batches(dump: Dump) -> Iterator[Batch]:
    """Batches in order; an error comes after the pages before it."""
    pages: list[Page | Skipped] = []
    size = 0
    try:
        for page in dump:
            pages.append(page)
            size += 100 + (len(page.wikitext) if isinstance(page, Page) else 0)
            if size >= BATCH:
                yield Batch(frozenset(dump.hidden_namespaces), pages)
                pages, size = [], 0
    except RelmError as error:
        yield Batch(frozenset(dump.hidden_namespaces), pages)
        raise error
    yield Batch(frozenset(dump.hidden_namespaces), pages)


def _cleaned(batch: Batch) -> list[Encoded | Skipped]:
    return [page if isinstance(page, Skipped) else _article(page, batch.hidden_namespaces) for page in batch.pages]


def _article(page: Page, hidden_namespaces: frozenset[str]) -> Encoded | Skipped:
    text = plain_text(page.wikitext, hidden_namespaces)
    return encoded(Document(page.id, page.title, text)) if text else Skipped("empty")
