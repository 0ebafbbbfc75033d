"""How each format of a dataset becomes documents: what is read in this process, and what a worker makes of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from relm.corpus.documents import Encoded, Skipped
from relm.corpus.line_documents import (
    batches_of_articles,
    batches_of_lines,
    batches_of_sentences,
    documents_of_articles,
    documents_of_lines,
    documents_of_sentences,
)
from relm.corpus.records import Rows, documents_of_json_lines, documents_of_rows
from relm.corpus.text_files import batches_of_text_files, documents_of_text_files
from relm.corpus.wikipedia_articles import batches_of_pages, documents_of_pages
from relm.recipes.catalogue import Dataset


class Format(NamedTuple):
    """Two functions and some words."""

    batches: Callable[[Dataset, Path], Iterator[Any]]
    """(dataset, path) -> what a worker takes at once, in order."""
    documents: Callable[[Dataset, str, Any], Iterator[Encoded | Skipped]]
    """(dataset, name of the file, batch) -> its documents and what is skipped, in order; done by workers."""
    entries: str
    """What the source is made of."""
    skipped: tuple[str, ...] = ("empty",)
    """Why an entry of the source may become no document."""
    skipping_is_usual: bool = True
    """Otherwise the sentence at the end warns of what was skipped."""


def _parquet(dataset: Dataset, path: Path) -> Iterator[Rows]:
    from relm.corpus.parquet_rows import batches_of_parquet  # pyarrow takes every worker a while, and is seldom needed

    return batches_of_parquet(dataset, path)


def _hugging_face(dataset: Dataset, path: Path) -> Iterator[Rows]:
    from relm.corpus.hugging_face import batches_of_hugging_face  # the same for `datasets`

    return batches_of_hugging_face(dataset, path)


FORMATS = {
    "mediawiki_xml": Format(
        batches_of_pages, documents_of_pages, "pages", skipped=("redirects", "other_namespaces", "empty", "cut")
    ),
    "wikitext": Format(batches_of_articles, documents_of_articles, "articles"),
    "text_files": Format(batches_of_text_files, documents_of_text_files, "files", skipping_is_usual=False),
    "text_sentences": Format(batches_of_sentences, documents_of_sentences, "documents"),
    "text_lines": Format(batches_of_lines, documents_of_lines, "lines"),
    "json_lines": Format(batches_of_lines, documents_of_json_lines, "lines"),
    "parquet": Format(_parquet, documents_of_rows, "rows"),
    "hugging_face": Format(_hugging_face, documents_of_rows, "rows"),
}
