"""Apply a function to the lines of documents in several processes, in the order of the lines, with a progress bar."""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from relm.corpus.workers import ordered_map
from relm.examples import documents as reading
from relm.examples.documents import Lines, applied, chunks_of
from relm.limits import usable_cores
from relm.progress import ProgressBar

Result = TypeVar("Result")


def map_documents(
    function: Callable[[Lines], Result],
    documents: Sequence[Path],
    workers: int | None,
    task: str,
    numbered: bool = True,
) -> Generator[tuple[Lines, Result], None, None]:
    """Yield some lines of the files at a time, in order, with the function's result.

    The function and its results are importable, as for `relm.corpus.workers.ordered_map`; `task` names the work in the bar and
    in the message when a worker dies. `numbered` is passed to `relm.examples.documents.chunks_of`.
    """
    size = sum(path.stat().st_size for path in documents)
    processes = min(usable_cores() if workers is None else workers, 1 + size // reading.CHUNK)
    chunks = (lines for path in documents for lines in _read_chunks(path, numbered))
    name = documents[0].name if len(documents) == 1 else task
    with (
        contextlib.closing(ordered_map(functools.partial(applied, function), chunks, processes, task)) as results,
        ProgressBar(total=size, desc=name, unit="B", unit_scale=True, disable=None) as bar,
    ):
        for lines, result in results:
            yield lines, result
            bar.update(lines.size)


def _read_chunks(path: Path, numbered: bool) -> Iterator[Lines]:
    with open(path, "rb") as file:
        yield from chunks_of(file, numbered)
