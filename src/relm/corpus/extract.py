"""The step from downloaded bytes to documents."""

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import write_sidecar
from relm.corpus.documents import (
    HELD_OUT,
    TRAIN,
    DocumentCounts,
    Encoded,
    Skipped,
    fitting_held_out_one_in,
    split_files,
    split_of,
    title_number,
)
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.limits import usable_cores
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.declaration import load
from relm.recipes.identity import folder_files

# A worker more for so many bytes of the source: below that, starting one takes longer than it saves.
BYTES_PER_WORKER = 300_000

# Of so many documents the numbers are remembered, to suggest a working held_out_one_in should a split stay empty.
REMEMBERED = 1000


class SourceFile(NamedTuple):
    """A file that documents are read from."""

    name: str
    """As in the dataset's `files`, or its path inside the folder; what documents without an id are called after."""
    path: Path


class Batch(NamedTuple):
    """What a worker takes at once."""

    file: str
    content: Any
    """As the format's reader gives it; None: the file has nothing in it."""


class Made(NamedTuple):
    """What a worker made of a batch."""

    file: str
    outcomes: list[Encoded | Skipped]
    fault: RelmError | None
    """What is wrong with the entry after the last of them."""


class Tally(NamedTuple):
    """What was written and what was not."""

    counts: dict[str, DocumentCounts]
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


def extract(
    dataset: Dataset, source: Path | None, outputs: Mapping[str, Path], documents: int | None, workers: int | None
) -> str:
    """Write the documents of one shard, those held out apart, and return a sentence about them.

    The files' bytes do not depend on the number of workers. Their sidecars have the facts documents, words, bytes (of the text
    in UTF-8), and ``skipped``: how many entries of the source became no document, by reason, up to the last document written.

    Args:
        dataset: how the source is read and split.
        source: the downloaded file; for a dataset that is a folder, that folder; for one of the hub, None.
        outputs: the .jsonl file of each split, ``train`` and ``held_out``.
        documents: stop after so many; None: all.
        workers: processes that make documents; None: as many as there are cores.

    Raises:
        RelmError: the source is absent or damaged, a worker died, or a split would have no document.
    """
    started = time.perf_counter()
    tally = Tally({TRAIN: DocumentCounts(), HELD_OUT: DocumentCounts()}, dict.fromkeys(FORMATS[dataset.format].skipped, 0), [])
    files = _source_files(dataset, source)
    split_in = _splitter(dataset, source, files, documents)
    outcomes = _outcomes(dataset, files, usable_cores() if workers is None else workers)
    with split_files(outputs) as written, contextlib.closing(outcomes):
        for file, outcome in outcomes:
            if isinstance(outcome, Skipped):
                tally.skipped[outcome.reason] += 1
                continue
            split = split_in(file, outcome.number)
            written[split].write(outcome.line)
            tally.add(outcome, split)
            if tally.documents == documents:
                break
        _check_splits(dataset, source, tally)
    for split, path in outputs.items():
        write_sidecar(path, **asdict(tally.counts[split]), skipped=tally.skipped)
    return _sentence(dataset, _name(dataset, source), tally, time.perf_counter() - started)


# --- which files, and which split ------------------------------------------------------------------------------------------


def _source_files(dataset: Dataset, source: Path | None) -> list[SourceFile]:
    """The files in the order in which they are read. A Hugging Face dataset is one, whatever it is made of."""
    if FORMATS[dataset.format].reads_folders_whole:
        return [SourceFile(dataset.split, source or Path())]
    if source is None:
        raise RelmError(f"format {dataset.format} needs a source: a downloaded file or a folder")
    if not source.is_dir():
        return [SourceFile(source.name, source)]
    paths = folder_files(dataset.model_copy(update={"folder": str(source)}))
    files = [SourceFile(_inside(source, path), path) for path in paths]
    if absent := set(dataset.held_out_files) - {file.name for file in files}:
        raise RelmError(f"{source}: held_out_files: {min(absent)} is not there; it has {', '.join(f.name for f in files)}")
    # Held-out files first, so that a run with few documents has some of both; within each split the order stays.
    return sorted(files, key=lambda file: file.name not in dataset.held_out_files)


def _inside(folder: Path, path: Path) -> str:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RelmError(f"{str(path)!r}: the file's name is not valid UTF-8; rename it") from None
    return name


def _splitter(
    dataset: Dataset, source: Path | None, files: list[SourceFile], documents: int | None
) -> Callable[[str, int], str]:
    """(name of the file, number of the document) -> split."""
    if dataset.held_out_files:
        held_out_files = frozenset(dataset.held_out_files)
        return lambda file, _: HELD_OUT if file in held_out_files else TRAIN
    one_document_a_file = FORMATS[dataset.format].one_document_a_file
    if one_document_a_file and dataset.held_out_end is None and source is not None and source.is_dir():
        names = [file.name for file in files if file.path.stat().st_size]
        held_out = _lowest(dataset, names[:documents])
        return lambda _, number: HELD_OUT if number in held_out else TRAIN
    return lambda _, number: split_of(number, dataset.one_in)


def _lowest(dataset: Dataset, names: list[str]) -> frozenset[int]:
    """The `title_number` of each file of a folder that is held out: one in so many with the lowest, so one at least."""
    numbers = sorted(map(title_number, names))
    return frozenset(numbers[: max(1, len(numbers) // dataset.one_in)] if len(numbers) > 1 else ())


def _check_splits(dataset: Dataset, source: Path | None, tally: Tally) -> None:
    """Raise unless both splits have documents."""
    name = str(source or _name(dataset, source))
    if not tally.documents:
        raise RelmError(f"{name}: there is no document in it{_listed('; skipped: ', tally)}; nothing was written")
    if all(count.documents for count in tally.counts.values()):
        return
    if dataset.held_out_end is not None:
        raise RelmError(
            f"{name}: held_out_end: {dataset.held_out_end} of {tally.documents} documents leaves one split empty: each file is "
            "two; correct it, or read more documents"
        )
    if dataset.held_out_files:
        if dataset.files:
            return  # a shard is one file, and so of one split
        lacking = "left for" if tally.counts[HELD_OUT].documents else "held out of"
        raise RelmError(f"{name}: no document is {lacking} training; correct held_out_files, or read more documents")
    numbers = tally.numbers
    if FORMATS[dataset.format].one_document_a_file and len(dataset.files) > 1:
        # A shard is one file and so one document: it is the dataset that has two splits.
        numbers = [title_number(file) for file in dataset.files]
    one_in = dataset.one_in
    held_out = sum(split_of(number, one_in) == HELD_OUT for number in numbers)
    if 0 < held_out < len(numbers):
        return
    lacking = "left for" if held_out else "held out of"
    fitting = fitting_held_out_one_in(numbers, one_in)
    raise RelmError(
        f"{name}: with held_out_one_in: {one_in}, no document (of {len(numbers)}) is {lacking} training; "
        + (f"set held_out_one_in: {fitting} in the dataset's file" if fitting else "two documents at least are needed")
    )


# --- the sentence ----------------------------------------------------------------------------------------------------------


def _listed(label: str, tally: Tally) -> str:
    found = [f"{reason.replace('_', ' ')} {count:,}" for reason, count in tally.skipped.items() if count]
    return label + ", ".join(found) if found else ""


def _name(dataset: Dataset, source: Path | None) -> str:
    return dataset.hub.name if dataset.hub else source.name if source else ""


def _sentence(dataset: Dataset, name: str, tally: Tally, seconds: float) -> str:
    words = sum(count.words for count in tally.counts.values())
    entries = tally.documents + sum(tally.skipped.values())
    format_ = FORMATS[dataset.format]
    label = "; skipped: " if format_.skipping_is_usual else f"; warning: skipped {format_.entries}: "
    return (
        f"extracted {tally.documents:,} documents with {words:,} words from {name}, "
        f"{tally.counts[HELD_OUT].documents:,} of them held out of training{_listed(label, tally)}; "
        f"{entries / max(seconds, 1e-9):,.0f} {format_.entries}/s"
    )


# --- reading ---------------------------------------------------------------------------------------------------------------


def _outcomes(dataset: Dataset, files: list[SourceFile], workers: int) -> Generator[tuple[str, Encoded | Skipped], None, None]:
    """(name of the file, outcome) in the order of the source; the first fault of the source is raised, whoever finds it."""
    if dataset.hub is None:
        workers = min(workers, 1 + _size(files) // BYTES_PER_WORKER)
    make = functools.partial(_made, dataset)
    task = f"extracting {files[0].path if len(files) == 1 else dataset.folder}"
    for made in ordered_map(make, _batches(dataset, files), workers, task):
        for outcome in made.outcomes:
            yield made.file, outcome
        if made.fault:
            raise made.fault


def _size(files: list[SourceFile]) -> int:
    """Bytes of all files; of a folder that is read as one, of all that is in it."""
    paths = [inside for file in files for inside in (file.path.rglob("*") if file.path.is_dir() else [file.path])]
    return sum(path.stat().st_size for path in paths if path.is_file())


def _batches(dataset: Dataset, files: list[SourceFile]) -> Iterator[Batch]:
    for file in files:
        empty = True
        for content in load(FORMATS[dataset.format].batches)(dataset, file.path):
            yield Batch(file.name, content)
            empty = False
        if empty:
            yield Batch(file.name, None)


def _made(dataset: Dataset, batch: Batch) -> Made:
    """A worker's task. A fault is returned, so that it is raised after all that comes before it."""
    outcomes: list[Encoded | Skipped] = [] if batch.content is not None else [Skipped("empty")]
    try:
        if batch.content is not None:
            outcomes.extend(load(FORMATS[dataset.format].documents)(dataset, batch.file, batch.content))
    except RelmError as error:
        return Made(batch.file, outcomes, error)
    return Made(batch.file, outcomes, None)
