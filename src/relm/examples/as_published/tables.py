"""Write tables of instances: with progress, the sidecar at the end, and a sentence about the result."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import read_sidecar, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.pairs import Corpus
from relm.examples.manifest import length_histogram, summed
from relm.examples.storage import dtype_of
from relm.examples.table import Column, TableWriter, table_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.examples.tokenized import Sentences, tokenized_documents
from relm.progress import ProgressBar
from relm.recipes.objectives import TABLE, Objective


class TableSource(NamedTuple):
    """The documents file from which a table is built."""

    sha256: str
    documents: int
    words: int
    bytes: int


class Table:
    """A table that is being written, from `open_table`."""

    def __init__(self, writer: TableWriter, bar: "ProgressBar") -> None:
        self.tokens = 0
        """The tokens of all rows so far, padding not counted."""
        self.histogram: list[list[int]] = []
        self.counts: dict[str, int] = {}
        """Further facts for the sidecar."""
        self._writer = writer
        self._bar = bar

    @property
    def examples(self) -> int:
        """The rows so far."""
        return self._writer.rows

    def append(self, columns: Mapping[str, Any], lengths: npt.NDArray[np.integer]) -> None:
        """Append rows.

        Args:
            lengths: (rows,), tokens of each.
        """
        self._writer.append(columns)
        self.tokens += int(lengths.sum(dtype=np.int64))
        self.histogram = summed([self.histogram, length_histogram(lengths)])
        self._bar.update(len(lengths))


@contextlib.contextmanager
def open_table(
    output: Path, objective: Objective, loaded: LoadedTokenizer, source: TableSource, columns: Sequence[Column], **more: Any
) -> Iterator[Table]:
    """Write the table `output`, and its sidecar when the block ends without an error.

    Args:
        more: further facts for the table and its sidecar.
    """
    facts = {
        "objective": objective.objective,
        "layout": TABLE,
        "dtype": dtype_of(loaded.vocabulary_size),
        "documents": source.documents,
        "words": source.words,
        "bytes": source.bytes,
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "settings": objective.stored_keys(),
        "source": source.sha256,
        **more,
    }
    with table_writer(output, columns, facts) as writer, ProgressBar(desc=output.name, unit="rows", disable=None) as bar:
        table = Table(writer, bar)
        yield table
    counts = {"tokens": table.tokens, "examples": table.examples, "length_histogram": table.histogram}
    write_sidecar(output, **facts, **counts, **table.counts)


class Documents(NamedTuple):
    """Documents as tokens, with the facts of their file."""

    corpus: Corpus
    source: TableSource
    loaded: LoadedTokenizer


@contextlib.contextmanager
def read_documents(
    documents: Path, tokenizer: Path, sentences: Sentences, language: str, workers: int | None, folder: Path | None = None
) -> Iterator[Documents]:
    """Yield the documents as the originals read theirs: sentences without surrounding white space, blank ones dropped.

    Args:
        folder: folder for temporary files; None: that of the documents.
    """
    loaded = load_tokenizer(tokenizer)
    if sentences == "split" and loaded.kind != "wordpiece":
        raise RelmError(
            f"masked.sentences: split keeps the space before a sentence, which the originals strip; a {loaded.kind} "
            "tokenizer sees it; give documents with one sentence a line, and set it to lines"
        )
    with (
        _with_space_before_texts(loaded) as used,
        tokenized_documents(documents, used, sentences, language, workers, stripped_lines=True, folder=folder) as found,
    ):
        corpus = Corpus(found.tokens, found.sentence_starts, found.document_starts, found.word_starts)
        require_documents(documents, corpus.documents)
        yield Documents(corpus, TableSource(found.source_sha256, corpus.documents, found.words, found.bytes), loaded)


@contextlib.contextmanager
def _with_space_before_texts(loaded: LoadedTokenizer) -> Iterator[Path]:
    """Yield a tokenizer file that encodes as pytorch_transformers 1.2.0 did, with a space before each text of byte-level BPE.

    The first word of a sentence is then the same token as in the middle of one.
    """
    if loaded.kind != "byte_level_bpe":
        yield loaded.path
        return
    parts = json.loads(loaded.path.read_bytes())
    parts["pre_tokenizer"]["add_prefix_space"] = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / loaded.path.name
        path.write_text(json.dumps(parts), encoding="utf-8")
        yield path


def require_documents(path: Path, documents: int) -> None:
    """Raise RelmError for a file without text, unless its sidecar counts no documents, as a shard of one document may."""
    if documents or (sidecar_of(path).exists() and read_sidecar(path).get("documents") == 0):
        return
    raise RelmError(f"{path}: holds no text; run the step that extracts the documents again")


def format_summary(original: str, table: Table, source: TableSource, started: float) -> str:
    """Return a sentence with the counts of a table and its speed since `started`."""
    seconds = perf_counter() - started
    return (
        f"made {table.examples:,} examples as {original} does, with {table.tokens:,} tokens, of {source.documents:,} documents "
        f"in {seconds:.1f} s; {table.examples / seconds:,.0f} examples/s"
    )
