"""Extract the readable text of the articles in a Wikipedia dump."""

import contextlib
import functools
import itertools
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relm.corpus.documents import Document, Encoded, Skipped, encode_document
from relm.corpus.wikipedia.dump import Page, SeenPages, Wiki
from relm.corpus.wikipedia.markup import extract_plain_text
from relm.corpus.wikipedia.pieces import PiecedDump, read_piece
from relm.corpus.workers import ordered_map

if TYPE_CHECKING:  # imported by processes that clean pages, so it imports little
    from relm.recipes.datasets import Dataset


class Article(NamedTuple):
    """An article after cleaning."""

    id: str
    outcome: Encoded | Skipped


def read_dumps(
    dataset: "Dataset", paths: Sequence[Path], workers: int, task: str
) -> Generator[tuple[Path, Encoded | Skipped], None, None]:
    """Yield (path, outcome) for each page of dumps in order; the processes decompress, parse and clean pieces of them."""
    options = dataset.ends_mid_page, dataset.language
    dumps = [PiecedDump(path, extract_article, *options) for path in paths]
    pieces = (piece for dump in dumps for piece in dump.cut())
    reads = ordered_map(functools.partial(read_piece, make=extract_article), pieces, workers, task)
    with contextlib.closing(reads):
        for dump, (_, group) in zip(dumps, itertools.groupby(reads, lambda read: read.piece.path), strict=True):
            seen = SeenPages()
            for made in itertools.chain(itertools.chain.from_iterable(map(dump.join, group)), dump.finish()):
                if isinstance(made, Article):
                    yield dump.path, made.outcome if seen.add(made.id) else Skipped("doubled")
                else:
                    yield dump.path, made


def extract_article(page: Page | Skipped, wiki: Wiki) -> Article | Skipped:
    """Return the document of an article; its title decides the split."""
    if isinstance(page, Skipped):
        return page
    unknown: dict[str, int] = {}
    text = extract_plain_text(page.wikitext, wiki.names, unknown)
    if not text:
        return Article(page.id, Skipped("empty"))
    return Article(page.id, encode_document(Document(page.id, page.title, text))._replace(unknown=unknown))
