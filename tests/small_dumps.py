"""Dumps of a few lines, datasets to read them with, and a reader of whole dumps by one parser."""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from relm.corpus.decompression import read_decompressed
from relm.corpus.documents import Skipped
from relm.corpus.wikipedia.dump import DumpParser, Page, SeenPages, Wiki
from relm.recipes.datasets import Dataset

SAMPLE = Path(__file__).parent / "data" / "enwiki-sample.xml.bz2"
ANY_FILE = {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org/file"}]}


class Dump:
    """A dump, to be iterated over once: articles and what is skipped, in the file's order, then its fault if it has one."""

    def __init__(self, path: Path, ends_mid_page: bool = False) -> None:
        self._parser = DumpParser(path, ends_mid_page)

    @property
    def wiki(self) -> Wiki:
        """The wiki; complete when the first page is yielded."""
        return self._parser.wiki

    def __iter__(self) -> Iterator[Page | Skipped]:
        return skip_doubled(self._read())

    def _read(self) -> Iterator[Page | Skipped]:
        for block in read_decompressed(self._parser.path):
            pages, fault = self._parser.feed(block)
            yield from pages
            if fault:
                raise fault
        yield from self._parser.finish()


def skip_doubled(entries: Iterable[Page | Skipped]) -> Iterator[Page | Skipped]:
    """Yield the entries, and in place of the second page with an id that it is doubled."""
    seen = SeenPages()
    for entry in entries:
        yield entry if isinstance(entry, Skipped) or seen.add(entry.id) else Skipped("doubled")


def dataset(*names: str, **settings: Any) -> Dataset:
    """Return a dataset, by default of Wikipedia; of files, where names are given or there is no folder."""
    if not {"folder", "hub"} & set(settings):
        settings["files"] = dict.fromkeys(names or ("dump.xml",), ANY_FILE)
    return Dataset.model_validate(
        {"title": "Test", "licence": "CC0-1.0", "language": "en", "format": "mediawiki_xml", **settings}
    )


def page(title: str, text: str, number: int | None = None, ns: int | None = 0, extra: str = "") -> str:
    """Return a page; without a number, its id follows from its title."""
    number = zlib.crc32(title.encode()) % 10**6 if number is None else number
    namespace = "" if ns is None else f"<ns>{ns}</ns>"
    return (
        f"<page><title>{escape(title)}</title>{namespace}<id>{number}</id>{extra}"
        f'<revision><id>9</id><text xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


def dump(*pages: str, namespaces: str = "") -> str:
    header = f"<siteinfo><sitename>W</sitename><namespaces>{namespaces}</namespaces></siteinfo>\n"
    return f'<mediawiki version="0.10" xml:lang="en">\n{header}{"".join(pages)}</mediawiki>\n'


def articles(count: int, words: int = 5) -> str:
    """Return a dump of articles that differ in title and text."""
    return dump(*(page(f"Title {i}", f"'''Title {i}''' is [[number|the number]] {i}. " * words, i + 1) for i in range(count)))


def written(folder: Path, content: str | bytes, name: str = "dump.xml") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
