"""The blocks of tokens of run_mlm.py of transformers 4.2.2 on WikiText, as the Hugging Face blog ran it, bit for bit.

Every line of the file is a row, blank ones included, with its own ``[CLS]`` and ``[SEP]``. The rows of each batch of
1,000 are concatenated and cut into blocks; the remainder of a batch is dropped. The count of blocks depends on which rows
share a batch. It is the original's only if the documents are those of a whole file, in order: the articles of WikiText as this
project reads them, from a dataset that holds none of them out of this file. Masks are drawn as blocks are read, Bernoulli for
each token that is not special, as in the original. The draws are relm's, because the original's come from the generator of
the process that trains.
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.corpus.documents import Document, read_documents
from relm.corpus.workers import ordered_map
from relm.examples.as_published.instances import NO_PAIR, table_columns
from relm.examples.as_published.options import Original, require_options
from relm.examples.as_published.tables import format_summary, require_documents
from relm.examples.columns import Column
from relm.examples.described_tables import TableSource, open_table
from relm.examples.documents import checked_documents
from relm.examples.tokenization.encoder import TextEncoder
from relm.examples.tokenization.tokenizer_files import load_tokenizer, loaded_as
from relm.limits import usable_cores
from relm.recipes.objectives import Objective

ORIGINAL = Original(
    "run_mlm",
    {
        "packing": ("full_sentences",),
        "sentences": ("split",),
        "short_sequence_probability": (0.0,),
        "duplication_factor": (1,),
        "seed": (0,),
        "masks": ("dynamic",),
        "probability": None,
        "max_predictions": (None,),
        "selection": ("bernoulli",),
        "whole_words": (False,),
    },
)
# Rows that `datasets` passes to a function at once by default.
BATCH = 1000
# The line ends of a text file that Python opens.
_LINE_END = re.compile("\r\n|\r|\n")


class Blocks(NamedTuple):
    """The blocks that a batch of rows gives."""

    input_ids: npt.NDArray[np.int32]
    """(blocks, L)."""
    word_starts: npt.NDArray[np.bool_]
    """(blocks, L), True at the first token of each word and at special tokens."""
    dropped: int
    """Tokens, special ones included, that did not fill a block."""


def split_rows(text: str) -> list[str]:
    """Return the rows that `datasets` makes of some lines of a WikiText file: each with its end, blank ones empty.

    >>> split_rows(" = Title = \\n \\nText .")
    [' = Title = \\n', '', 'Text .\\n']
    """
    return [f"{line}\n" if line.strip() else "" for line in _LINE_END.split(text)]


def cut_blocks(
    tokens: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int32],
    word_starts: npt.NDArray[np.bool_],
    cls: int,
    sep: int,
    sequence_length: int,
) -> Blocks:
    """Return the blocks of one batch: its rows between special tokens, concatenated and cut.

    `tokens` and `word_starts` are those of all rows, (n,), `sizes` the tokens of each, (rows,), 0 of blank ones.

    >>> cut_blocks(np.arange(3, dtype="i4"), np.array([2, 0, 1], "i4"), np.ones(3, bool), 8, 9, 4).input_ids
    array([[8, 0, 1, 9],
           [8, 9, 8, 2]], dtype=int32)
    """
    ends = np.cumsum(sizes + 2)
    joined = np.empty(len(tokens) + 2 * len(sizes), dtype=np.int32)
    starts = np.ones(len(joined), dtype=np.bool_)
    is_text = np.ones(len(joined), dtype=np.bool_)
    is_text[ends - 1] = is_text[ends - sizes - 2] = False
    joined[ends - 1], joined[ends - sizes - 2] = sep, cls
    joined[is_text], starts[is_text] = tokens, word_starts
    whole = len(joined) // sequence_length * sequence_length
    shape = (-1, sequence_length)
    return Blocks(joined[:whole].reshape(shape), starts[:whole].reshape(shape), len(joined) - whole)


def encode_batch(tokenizer: Path, tokenizer_sha256: str, sequence_length: int, rows: list[str]) -> Blocks:
    """Encode one batch of rows and return its blocks."""
    encoder, cls, sep = _load_encoder(tokenizer, tokenizer_sha256)
    (tokens, sizes), word_starts = encoder.with_word_starts(rows)
    return cut_blocks(tokens, sizes, word_starts, cls, sep, sequence_length)


@functools.lru_cache(maxsize=1)
def _load_encoder(tokenizer: Path, sha256: str) -> tuple[TextEncoder, int, int]:
    loaded = loaded_as(tokenizer, sha256)
    return TextEncoder(loaded.tokenizer), loaded.required("cls"), loaded.required("sep")


class _CountedBatches:
    """Iterates over the batches of rows of a documents file, and counts them."""

    def __init__(self, documents: Path) -> None:
        self.path = documents
        self.documents = self.rows = self.words = self.bytes = 0

    def __iter__(self) -> Iterator[list[str]]:
        rows = itertools.chain.from_iterable(split_rows(self._count(document).text) for document in read_documents(self.path))
        while batch := list(itertools.islice(rows, BATCH)):
            self.rows += len(batch)
            yield batch

    def _count(self, document: Document) -> Document:
        self.documents += 1
        self.words += len(document.text.split())
        self.bytes += len(document.text.encode())
        return document


def pregenerate_run_mlm(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Write the blocks of a file of articles as a table without masks.

    The documents are the articles of one WikiText file in order, lines and blank lines unchanged; other arguments are those of
    `relm.examples.builders.pregenerate`. Further facts: ``rows``, of the original's dataset, and in the
    sidecar ``dropped_tokens``.
    """
    require_options(ORIGINAL, objective)
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    loaded.required("cls"), loaded.required("sep")
    sha256, _ = checked_documents(documents)
    read = _CountedBatches(documents)
    for _ in read:  # facts are at the head of the table, so the counts must be known before its rows
        pass
    require_documents(documents, read.documents)
    source = TableSource(sha256, read.documents, read.words, read.bytes)
    encode = functools.partial(encode_batch, tokenizer, loaded.sha256, objective.sequence_length)
    count = min(usable_cores() if workers is None else workers, 1 + read.rows // BATCH)
    length = objective.sequence_length
    columns = [*table_columns(length, 0, loaded.vocabulary_size)[:4], Column("word_starts", "bool", length)]
    with (
        open_table(output, objective, loaded, source, columns, rows=read.rows) as table,
        contextlib.closing(ordered_map(encode, iter(_CountedBatches(documents)), count, f"encoding {documents}")) as batches,
    ):
        table.counts["dropped_tokens"] = 0
        for blocks in batches:
            table.counts["dropped_tokens"] += blocks.dropped
            lengths = np.full(len(blocks.input_ids), length)
            table.append(_row_values(blocks, lengths), lengths)
    return format_summary(ORIGINAL.name, table, source, started)


def _row_values(blocks: Blocks, lengths: npt.NDArray[np.integer]) -> dict[str, Any]:
    return {
        "input_ids": blocks.input_ids,
        "length": lengths,
        "second_start": lengths,
        "next_sentence_label": np.full(len(lengths), NO_PAIR),
        "word_starts": blocks.word_starts,
    }
