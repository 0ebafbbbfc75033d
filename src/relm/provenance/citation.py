"""The authors and the address in a checkout's CITATION.cff, which a fork edits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import relm
from relm.errors import RelmError
from relm.recipes.section import read_yaml

CITATION = "CITATION.cff"


@dataclass(frozen=True)
class Author:
    """A person or an organisation."""

    name: str
    is_person: bool = False
    page: str | None = None
    """An ORCID or a web page."""


@dataclass(frozen=True)
class Citation:
    """The parts of a CITATION.cff that published runs repeat."""

    authors: Sequence[Author]
    url: str | None = None
    """The code's address, if it has one."""


def read_citation(folder: Path | None = None) -> Citation:
    """Return a folder's citation, this checkout's by default; without the file, relm's maintainers."""
    path = (Path(relm.__file__).resolve().parents[2] if folder is None else folder) / CITATION
    if not path.is_file():
        return Citation([Author("The relm maintainers")])
    content = read_yaml(path)
    listed = content.get("authors") if isinstance(content, dict) else None
    try:
        authors = [_author(entry) for entry in listed or []]
    except (AttributeError, TypeError):
        authors = []
    if not authors or not all(author.name for author in authors):
        raise RelmError(f"{path}: expected authors, each with name, or with given-names and family-names; found {listed!r:.99}")
    return Citation(authors, content.get("repository-code") or content.get("url"))


def _author(entry: Mapping[str, Any]) -> Author:
    parts = [str(entry[key]) for key in ("given-names", "name-particle", "family-names", "name-suffix") if key in entry]
    page = entry.get("orcid") or entry.get("website")
    return Author(" ".join(parts) or str(entry.get("name") or ""), bool(parts), page)
