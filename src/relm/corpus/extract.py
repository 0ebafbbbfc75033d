"""Extract documents from downloaded bytes."""

import collections
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from relm.artifact import write_sidecar
from relm.corpus.documents import (
    HELD_OUT,
    TRAIN,
    DocumentCounts,
    Encoded,
    Skipped,
    choose_split,
    find_held_out_one_in,
    hash_title,
    split_files,
)
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.formatting import escape_controls
from relm.limits import usable_cores
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.declaration import load
from relm.recipes.files.folder_contents import describe_left_out
from relm.recipes.identity import folder_files

# Bytes of the source per further worker: with fewer, starting one takes longer than it saves.
BYTES_PER_WORKER = 300_000

# Damaged entries to name one by one.
NAMED = 20
# Unknown templates to name in the summary and in the sidecar; after the last number, new names are not counted.
SHOWN_TEMPLATES, KEPT_TEMPLATES, COUNTED_TEMPLATES = 5, 30, 50_000
# Documents whose numbers are kept, to suggest a working held_out_one_in if a split stays empty.
REMEMBERED = 1000


class SourceFile(NamedTuple):
    """A file with documents."""

    name: str
    """Name in the dataset's `files`, or path inside the folder; documents without an id are named after it."""
    path: Path


class Tally(NamedTuple):
    """The counts of written and skipped documents."""

    counts: dict[str, DocumentCounts]
    skipped: dict[str, int]
    numbers: list[int]
    unknown: collections.Counter[str]

    def add(self, document: Encoded, split: str) -> None:
        """Count one more document."""
        self.counts[split].add(document)
        for name, count in document.unknown.items():
            if name in self.unknown or len(self.unknown) < COUNTED_TEMPLATES:
                self.unknown[name] += count
        if len(self.numbers) < REMEMBERED:
            self.numbers.append(document.number)

    def most_frequent(self, count: int) -> list[tuple[str, int]]:
        """Return the most frequent unknown templates within sentences; of equal ones the first by name."""
        return sorted(self.unknown.items(), key=lambda item: (-item[1], item[0]))[:count]

    @property
    def documents(self) -> int:
        """Return the number of documents in both splits."""
        return sum(count.documents for count in self.counts.values())


def extract(
    dataset: Dataset,
    source: Path | None,
    outputs: Mapping[str, Path],
    documents: int | None,
    workers: int | None,
) -> str:
    """Write the documents of one shard, a file for each split, and return a sentence about them.

    The number of workers (None: one per core) changes no byte. The sidecars have the facts documents, words, bytes (of the text
    in UTF-8), and ``skipped``: how many entries of the source, up to the last document, were skipped, by reason. `source` is
    the downloaded file or the dataset's folder; None for a dataset of the hub. `documents` limits how many are written; None:
    all.

    Raises RelmError if the source is absent or damaged, a worker died, or a split of a whole source would be empty.
    """
    started = time.perf_counter()
    tally = Tally(
        {TRAIN: DocumentCounts(), HELD_OUT: DocumentCounts()},
        dict.fromkeys(FORMATS[dataset.format].skipped, 0),
        [],
        collections.Counter(),
    )
    files = _list_source_files(dataset, source)
    split_in = _make_splitter(dataset, source, files, documents)
    outcomes = _read_outcomes(dataset, files, usable_cores() if workers is None else workers)
    with split_files(outputs) as written, contextlib.closing(outcomes):
        for file, outcome in outcomes:
            if isinstance(outcome, Skipped):
                # A reason that is unusual, such as doubled pages, is in the sidecar only if it occurs.
                tally.skipped[outcome.reason] = tally.skipped.get(outcome.reason, 0) + 1
                _name_damage(outcome, tally.skipped[outcome.reason], file)
                continue
            split = split_in(file, outcome.number)
            written[split].write(outcome.line)
            tally.add(outcome, split)
            if tally.documents == documents:
                break
        _check_splits(dataset, source, tally)
    unknown = {"unknown_templates": dict(tally.most_frequent(KEPT_TEMPLATES))} if tally.unknown else {}
    for split, path in outputs.items():
        write_sidecar(path, **asdict(tally.counts[split]), skipped=tally.skipped, **unknown)
    summary = _format_summary(dataset, _name_source(dataset, source), tally, time.perf_counter() - started)
    if source is None or not source.is_dir():
        return summary
    left_out = describe_left_out(source, dataset.file_pattern, [file.path for file in files])
    return f"{summary}; not read: {left_out}" if left_out else summary


# --- which files, and which split ------------------------------------------------------------------------------------------


def _list_source_files(dataset: Dataset, source: Path | None) -> list[SourceFile]:
    """Return the files in the order of reading; a dataset of the hub counts as one."""
    if dataset.hub:
        return [SourceFile(dataset.split, Path())]
    if source is None:
        raise RelmError(f"format {dataset.format}: needs a source; give a downloaded file or a folder")
    if not source.is_dir():
        return [SourceFile(source.name, source)]
    paths = folder_files(dataset.model_copy(update={"folder": str(source)}))
    files = [SourceFile(path.relative_to(source).as_posix(), path) for path in paths]
    if absent := set(dataset.held_out_files) - {file.name for file in files}:
        raise RelmError(f"{source}: held_out_files: found no {min(absent)}; it has {', '.join(f.name for f in files)}")
    # Held-out files first, so that a run with few documents has both; within each split the order stays.
    return sorted(files, key=lambda file: file.name not in dataset.held_out_files)


def _make_splitter(
    dataset: Dataset, source: Path | None, files: list[SourceFile], documents: int | None
) -> Callable[[str, int], str]:
    """Return a function from a file's name and a document's number to the split."""
    if dataset.held_out_files:
        held_out_files = frozenset(dataset.held_out_files)
        return lambda file, _: HELD_OUT if file in held_out_files else TRAIN
    one_document_a_file = FORMATS[dataset.format].one_document_a_file
    if one_document_a_file and dataset.held_out_end is None and source is not None and source.is_dir():
        names = [file.name for file in files if file.path.stat().st_size]
        held_out = _choose_held_out(dataset, names[:documents])
        return lambda _, number: HELD_OUT if number in held_out else TRAIN
    return lambda _, number: choose_split(number, dataset.one_in)


def _choose_held_out(dataset: Dataset, names: list[str]) -> frozenset[int]:
    """Return the `hash_title` of each held-out file of a folder: the lowest, one in `held_out_one_in`, at least one."""
    numbers = sorted(map(hash_title, names))
    return frozenset(numbers[: max(1, len(numbers) // dataset.one_in)] if len(numbers) > 1 else ())


def _check_splits(dataset: Dataset, source: Path | None, tally: Tally) -> None:
    """Raise RelmError unless both splits have documents."""
    name = str(source or _name_source(dataset, source))
    if not tally.documents:
        raise RelmError(f"{name}: contains no documents{_format_skipped('; skipped: ', tally)}; nothing was written")
    if all(count.documents for count in tally.counts.values()):
        return
    if dataset.held_out_end is not None:
        raise RelmError(
            f"{name}: held_out_end: {dataset.held_out_end} of {tally.documents} documents empties a split; correct it or read "
            "more documents"
        )
    if dataset.held_out_files:
        if dataset.files:
            return  # a shard is one file, so it has one split
        lacking = "left for" if tally.counts[HELD_OUT].documents else "held out of"
        raise RelmError(f"{name}: no documents are {lacking} training; correct held_out_files, or read more documents")
    numbers = tally.numbers
    if FORMATS[dataset.format].one_document_a_file and len(dataset.files) > 1:
        # A shard is one file, so one document; the dataset must have both splits.
        numbers = [hash_title(file) for file in dataset.files]
    one_in = dataset.one_in
    held_out = sum(choose_split(number, one_in) == HELD_OUT for number in numbers)
    if 0 < held_out < len(numbers):
        return
    lacking = "left for" if held_out else "held out of"
    fitting = find_held_out_one_in(numbers, one_in)
    raise RelmError(
        f"{name}: with held_out_one_in: {one_in}, none of {len(numbers)} documents is {lacking} training; "
        + (f"set held_out_one_in: {fitting} in the dataset's file" if fitting else "give at least two documents")
    )


# --- the sentence ----------------------------------------------------------------------------------------------------------


def _format_skipped(label: str, tally: Tally) -> str:
    found = [f"{reason.replace('_', ' ')} {count:,}" for reason, count in tally.skipped.items() if count]
    return label + ", ".join(found) if found else ""


def _format_unknown(tally: Tally) -> str:
    """Return a clause with the templates that left holes in sentences."""
    named = ", ".join(f"{{{{{escape_controls(name)}}}}} {count:,}" for name, count in tally.most_frequent(SHOWN_TEMPLATES))
    return f"; {tally.unknown.total():,} templates in sentences show nothing, most often {named}" if named else ""


def _name_damage(entry: Skipped, count: int, file: str) -> None:
    """Warn about a damaged entry, the `count`-th, unless many were named before."""
    if entry.damage is not None and count <= NAMED:
        tqdm.write(f"warning: {entry.damage}; skipped", file=sys.stderr)
    elif entry.damage is not None and count == NAMED + 1:
        tqdm.write(f"warning: {file} has more {entry.reason.replace('_', ' ')}, which are skipped and counted", file=sys.stderr)


def _name_source(dataset: Dataset, source: Path | None) -> str:
    return dataset.hub.name if dataset.hub else source.name if source else ""


def _format_summary(dataset: Dataset, name: str, tally: Tally, seconds: float) -> str:
    words = sum(count.words for count in tally.counts.values())
    entries = tally.documents + sum(tally.skipped.values())
    format_ = FORMATS[dataset.format]
    label = "; skipped: " if format_.skipping_is_usual else f"; warning: skipped {format_.entries}: "
    return (
        f"extracted {tally.documents:,} documents with {words:,} words from {name}, "
        f"{tally.counts[HELD_OUT].documents:,} of them held out of training{_format_skipped(label, tally)}"
        f"{_format_unknown(tally)}; {entries / max(seconds, 1e-9):,.0f} {format_.entries}/s"
    )


# --- reading ---------------------------------------------------------------------------------------------------------------


def _read_outcomes(
    dataset: Dataset, files: list[SourceFile], workers: int
) -> Generator[tuple[str, Encoded | Skipped], None, None]:
    """Yield (name of the file, outcome) in the order of the source, and raise its first fault."""
    if dataset.hub is None:
        workers = min(workers, 1 + _count_bytes(files) // BYTES_PER_WORKER)
    task = f"extracting {files[0].path if len(files) == 1 else dataset.folder}"
    if reader := FORMATS[dataset.format].reader:
        names = {file.path: file.name for file in files}
        for path, outcome in load(reader)(dataset, list(names), workers, task):
            yield names[path], outcome
        return
    make = functools.partial(_process_batch, dataset)
    for file, found, fault in ordered_map(make, _read_batches(dataset, files), workers, task):
        for outcome in found:
            yield file, outcome
        if fault:
            raise fault


def _count_bytes(files: list[SourceFile]) -> int:
    return sum(file.path.stat().st_size for file in files if file.path.is_file())


def _read_batches(dataset: Dataset, files: list[SourceFile]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each file with each value of the format's reader, or with None if the file is empty."""
    for file in files:
        empty = True
        for content in load(FORMATS[dataset.format].batches)(dataset, file.path):
            yield file.name, content
            empty = False
        if empty:
            yield file.name, None


def _process_batch(dataset: Dataset, batch: tuple[str, Any]) -> tuple[str, list[Encoded | Skipped], RelmError | None]:
    """Return the file, the outcomes and the fault of a batch; so a fault can be raised after the documents before it."""
    file, content = batch
    outcomes: list[Encoded | Skipped] = []
    if content is None:
        return file, [Skipped("empty")], None
    try:
        outcomes.extend(load(FORMATS[dataset.format].documents)(dataset, file, content))
    except RelmError as error:
        return file, outcomes, error
    return file, outcomes, None
