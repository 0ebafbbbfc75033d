"""Read documents as the originals do, and describe the tables that are made of them."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from relm.artifact import read_sidecar, sidecar_of
from relm.errors import RelmError
from relm.examples.as_published.pairs import Corpus
from relm.examples.described_tables import Table, TableSource
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.examples.tokenized import Sentences, tokenize_documents


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

    Temporary files are in `folder`, by default that of the documents.
    """
    loaded = load_tokenizer(tokenizer)
    if sentences == "split" and loaded.kind != "wordpiece":
        raise RelmError(
            f"masked.sentences: split keeps the space before a sentence, which the originals strip and a {loaded.kind} "
            "tokenizer sees; give documents with one sentence per line, and set it to lines"
        )
    with (
        _with_space_before_texts(loaded) as used,
        tokenize_documents(documents, used, sentences, language, workers, stripped_lines=True, folder=folder) as found,
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
    raise RelmError(f"{path}: holds no text; extract the documents again")


def format_summary(original: str, table: Table, source: TableSource, started: float) -> str:
    """Return a sentence with the counts of a table and its speed since `started`."""
    seconds = perf_counter() - started
    return (
        f"made {table.examples:,} examples as {original} does, with {table.tokens:,} tokens, of {source.documents:,} documents "
        f"in {seconds:.1f} s; {table.examples / seconds:,.0f} examples/s"
    )
