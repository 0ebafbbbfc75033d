"""Dumps of a few lines, and datasets to read them with."""

import zlib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from relm.recipes.datasets import Dataset

SAMPLE = Path(__file__).parent.parent / "data" / "enwiki-sample.xml.bz2"
ANY_FILE = {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org/file"}]}


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
