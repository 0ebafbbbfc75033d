"""The documents of a Wikipedia dump: the readable text of its articles."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relm.corpus.documents import Document, Encoded, Skipped, encode_document
from relm.corpus.wiki_names import WikiNames
from relm.corpus.wikipedia import Dump, Page
from relm.corpus.wikitext_markup import extract_plain_text
from relm.errors import RelmError
from relm.recipes.datasets import Dataset

# Characters of wikitext in one batch for a worker: some 50 ms of work.
BATCH = 300_000


class PageBatch(NamedTuple):
    """The pages of one work item."""

    names: WikiNames
    pages: list[Page | Skipped]


def batch_pages(dataset: Dataset, path: Path) -> Iterator[PageBatch]:
    """Yield the pages of a dump in order, in batches; an error is raised after the pages before it."""
    dump = Dump(path, dataset.ends_mid_page)
    pages: list[Page | Skipped] = []
    size = 0
    try:
        for page in dump:
            pages.append(page)
            size += 100 + (len(page.wikitext) if isinstance(page, Page) else 0)
            if size >= BATCH:
                yield PageBatch(dump.names, pages)
                pages, size = [], 0
    except RelmError as error:
        yield PageBatch(dump.names, pages)
        raise error
    yield PageBatch(dump.names, pages)


def extract_pages(dataset: Dataset, file: str, batch: PageBatch) -> Iterator[Encoded | Skipped]:
    """Yield each article, cleaned; its title decides the split."""
    for page in batch.pages:
        yield page if isinstance(page, Skipped) else _extract_article(page, batch.names)


def _extract_article(page: Page, names: WikiNames) -> Encoded | Skipped:
    text = extract_plain_text(page.wikitext, names)
    return encode_document(Document(page.id, page.title, text)) if text else Skipped("empty")
