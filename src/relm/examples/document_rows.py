"""The causal objective with `packing: best_fit`: the step that packs documents into a table, and the table's examples.

A row has sequence_length + 1 tokens: as many inputs and, shifted by one, labels. Every document begins with the end-of-text
token, and every row with a document; `relm.examples.best_fit` chooses the documents of each row. Each file of documents is
packed by itself, so that the rows of a file depend on no other.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.best_fit import BestFitPacker
from relm.examples.chunks import Chunk
from relm.examples.columns import Column, Kind
from relm.examples.contract import Batch, Integers
from relm.examples.documents import checked_documents
from relm.examples.manifest import format_packing
from relm.examples.pregenerate import ShardCounts, encoded_documents
from relm.examples.sharded_tables import ExampleTables, open_tables
from relm.examples.storage import dtype_of
from relm.examples.table import table_writer
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.objectives import TABLE, Objective

COLUMN = "tokens"


def pregenerate_document_rows(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Pack a file of documents into one table of rows, `output`, and its sidecar.

    The column is `tokens` (L + 1). A file with too few tokens for a row gives a table without rows.

    Args:
        documents: JSON lines; compared with its sidecar if it has one.
        tokenizer: `tokenizer.json`.
        output: the table; the manifest is built from its sidecar.
        objective: decides the length of a row.
        language: language of the text, unused here.
        workers: processes that encode; None: one for each core. The count changes no byte.
    """
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    width: int = objective.sequence_length + 1
    packer = BestFitPacker(width, loaded.required("end_of_text"))
    source, may_be_empty = checked_documents(documents)
    dtype: Kind = "uint16" if dtype_of(loaded.vocabulary_size) == "uint16" else "int32"
    facts = {
        "objective": objective.objective,
        "layout": TABLE,
        "dtype": dtype,
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "settings": objective.stored_keys(),
        "source": source,
    }
    counts = ShardCounts()
    with (
        table_writer(output, [Column(COLUMN, dtype, width, below=loaded.vocabulary_size)], facts) as table,
        contextlib.closing(encoded_documents(documents, loaded, workers, end_of_text_id=None)) as chunks,
    ):
        for rows in packer.rows(_each_document(chunks, counts)):
            table.append({COLUMN: rows})
        if not packer.documents and not may_be_empty:
            raise RelmError(f"{documents}: holds no documents; run the step that extracts them again")
    tokens = table.rows * width
    stored = {"documents": packer.documents, "tokens": tokens, "examples": table.rows}
    write_sidecar(output, **facts, **stored, **asdict(counts), packing=asdict(packer.counts))
    seconds = perf_counter() - started
    return (
        f"packed {packer.documents:,} documents with {counts.words:,} words into {table.rows:,} rows of {width:,} tokens, "
        f"{1:.1%} utilisation, {format_packing(packer.counts, tokens)}; {tokens / seconds:,.0f} tokens/s"
    )


def _each_document(chunks: Iterable[Chunk], counts: ShardCounts) -> Iterator[npt.NDArray[np.integer]]:
    """Yield the tokens of each document, and add the chunks to the sums with the token before each document."""
    for chunk in chunks:
        counts.add(chunk._replace(sizes=chunk.sizes + np.int32(1)))
        stops = np.cumsum(chunk.sizes, dtype=np.int64).tolist()
        for start, stop in itertools.pairwise([0, *stops]):
            yield chunk.tokens[start:stop]


class DocumentRows:
    """The rows of one split, by index."""

    def __init__(self, tables: ExampleTables, objective: Objective) -> None:
        """Check that the tables have the columns of `pregenerate_document_rows`.

        Raises:
            RelmError: the tables are of another kind or length.
        """
        self.tables, self.options = tables, objective.causal
        column, width = tables.columns.get(COLUMN), objective.sequence_length + 1
        if column is None or column.width != width:
            found = "no such column" if column is None else f"rows of {column.width} tokens"
            raise RelmError(
                f"sequence_length: {objective.sequence_length} needs rows of {width} {COLUMN}, the examples have {found}; "
                "pregenerate them again"
            )
        first_token = tables.manifest.tokenizer.end_of_text_id
        if first_token is None:
            raise RelmError("causal.packing: best_fit needs an end-of-text token, which these examples lack; make them again")
        self.first_token = first_token

    @property
    def is_drawn(self) -> bool:
        """Return True if a run draws the examples with replacement; see `contract.numbers_at`."""
        return self.options.sampling == "with_replacement"

    def __len__(self) -> int:
        return len(self.tables)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return `input_ids` and `labels`, (examples, sequence_length), and `document_ids` with document attention.

        Nothing is drawn, so an example is the same in all epochs.

        Raises:
            IndexError: there is no such example.
        """
        rows = self.tables.rows(COLUMN, indices).astype(np.int64)
        batch = {"input_ids": rows[:, :-1].copy(), "labels": rows[:, 1:].copy()}
        if self.options.document_attention:
            batch["document_ids"] = np.cumsum(batch["input_ids"] == self.first_token, axis=1) - 1
        return batch


def open_document_rows(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> DocumentRows:
    """Open the examples of a split as `relm.examples.builders.open_examples` does; nothing is drawn."""
    return DocumentRows(open_tables(manifest, split, objective, check_content), objective)
