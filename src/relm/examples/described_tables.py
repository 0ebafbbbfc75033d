"""Write tables of examples with a progress bar, and their sidecars at the end."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import write_sidecar
from relm.examples.manifest import length_histogram, summed
from relm.examples.storage import dtype_of
from relm.examples.table import Column, TableWriter, table_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.progress import ProgressBar
from relm.recipes.objectives import Objective


class TableSource(NamedTuple):
    """The file that a table is built from."""

    sha256: str
    documents: int
    words: int
    bytes: int


class Table:
    """A table that `open_table` writes."""

    def __init__(self, writer: TableWriter, bar: ProgressBar) -> None:
        self.tokens = 0
        """The tokens of all rows so far, without padding."""
        self.histogram: list[list[int]] = []
        self.counts: dict[str, float] = {}
        """Further facts for the sidecar."""
        self._writer = writer
        self._bar = bar

    @property
    def examples(self) -> int:
        """Return the number of rows so far."""
        return self._writer.rows

    def append(self, columns: Mapping[str, Any], lengths: npt.NDArray[np.integer], progress: int | None = None) -> None:
        """Append rows of `lengths` tokens; the bar advances by `progress`, by default the number of rows."""
        self._writer.append(columns)
        self.tokens += int(lengths.sum(dtype=np.int64))
        self.histogram = summed([self.histogram, length_histogram(lengths)])
        self._bar.update(len(lengths) if progress is None else progress)


@contextlib.contextmanager
def open_table(
    output: Path,
    objective: Objective,
    loaded: LoadedTokenizer,
    source: TableSource,
    columns: Sequence[Column],
    total: int | None = None,
    unit: str = "rows",
    **more: Any,
) -> Iterator[Table]:
    """Write the table `output`, and its sidecar when the block ends without an error.

    The bar counts `unit` up to `total`; `more` are further facts for the table and its sidecar.
    """
    facts = {
        **first_facts(objective, loaded),
        "documents": source.documents,
        "words": source.words,
        "bytes": source.bytes,
        **last_facts(objective, loaded, source.sha256),
        **more,
    }
    with (
        table_writer(output, columns, facts) as writer,
        ProgressBar(total=total, desc=output.name, unit=unit, unit_scale=True, disable=None) as bar,
    ):
        table = Table(writer, bar)
        yield table
    counts = {"tokens": table.tokens, "examples": table.examples, "length_histogram": table.histogram}
    write_sidecar(output, **facts, **counts, **table.counts)


def first_facts(objective: Objective, loaded: LoadedTokenizer) -> dict[str, Any]:
    """Return the first facts of a sidecar, before its counts of documents."""
    return {"objective": objective.objective, "layout": objective.layout, "dtype": dtype_of(loaded.vocabulary_size)}


def last_facts(objective: Objective, loaded: LoadedTokenizer, source: str) -> dict[str, Any]:
    """Return the facts about the tokenizer, the settings and the source."""
    return {
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "settings": objective.stored_keys(),
        "source": source,
    }
