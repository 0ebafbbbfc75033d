"""Names in a wiki's language that decide what of its pages is text.

`names.json` has the namespaces and magic words of MediaWiki and the titles of sections that pywikibot knows, with the
versions of both; `tests/oracles/make_wiki_names.py` writes it. A dump's own namespaces are added from its header.
"""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_TABLE = Path(__file__).with_suffix(".json")

# Further sections without text: lists of links, and the remains of reference lists.
_MORE_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "en": (
        "see also", "see also and external links", "related links", "related topics", "links", "weblinks", "gallery",
        "external link", "external links", "external links and references", "external references", "external resources",
        "reference", "references", "references and external links", "references and notes", "references and further reading",
        "note", "notes", "notes and references", "notes and citations", "footnotes", "footnotes and references", "citations",
        "sources", "works cited", "further reading", "further reading and external links",
    ),
    "ro": (
        "vezi și", "vezi şi", "legături externe", "referințe", "referinţe", "note", "note și referințe", "lectură suplimentară",
        "bibliografie", "galerie",
    ),
    "bg": (
        "вижте също", "външни препратки", "източници", "бележки", "литература", "допълнителна литература", "галерия",
    ),
    "de": ("belege", "galerie", "quellen", "literatur und quellen", "fußnoten"),
    "es": ("bibliografía", "bibliografía adicional", "fuentes", "galería", "notas y referencias", "referencias"),
    "fr": (
        "annexes", "articles connexes", "bibliographie", "galerie", "liens externes", "note", "notes", "notes et références",
        "référence", "références", "source", "sources", "voir aussi",
    ),
    "it": ("collegamenti", "fonti", "galleria d'immagini", "note e riferimenti", "riferimenti bibliografici"),
    "lv": (
        "ārējās saites", "ārējā saite", "atsauces", "atsauces un piezīmes", "galerija", "literatūra", "piezīmes", "skatīt arī",
    ),
    "nl": (
        "bibliografie", "bronnen", "bronnen, noten en/of referenties", "externe link", "externe links", "galerij", "zie ook",
    ),
    "pt": ("bibliografia", "fontes", "galeria", "leitura adicional", "ligações externas", "notas", "referências", "ver também"),
}  # fmt: skip


class WikiNames(NamedTuple):
    """The names in one language."""

    language: str
    hidden: frozenset[str]
    """Namespaces, in lower case, whose links show nothing: images, media and categories."""
    sections: frozenset[str]
    """Titles, in lower case, of sections that only point elsewhere."""
    redirect: re.Pattern[str]
    """Matches the beginning of a page that is a redirect."""
    switches: re.Pattern[str]
    """Magic words between underscores, such as __NOTOC__, which show nothing."""
    variants: re.Pattern[str] | None
    """Splits a text in several scripts, -{zh-hans:...; zh-hant:...}-; None: the language has one script."""


@functools.cache
def names_of(language: str) -> WikiNames:
    """Return the names of a language, by its code in ``xml:lang``, of those it falls back to, and of English."""
    table = _read_table()
    code = language.lower()
    chain = dict.fromkeys((code, *table["languages"].get(code, {}).get("fallback", ()), "en"))

    def collect(key: str) -> set[str]:
        return {name for link in chain for name in table["languages"].get(link, {}).get(key, ())}

    variants = re.compile(rf"(?:^|;|=>)\s*{re.escape(code)}(?:-[a-z]+)*\s*:") if code in table["variants"] else None
    return WikiNames(
        language=code,
        hidden=frozenset(collect("hidden")),
        sections=frozenset(collect("sections").union(*(_MORE_SECTIONS.get(link, ()) for link in chain))),
        redirect=re.compile(rf"\s*(?:{_alternate(collect('redirect'))})(?!\w)", re.IGNORECASE),
        switches=re.compile(f"(?i:{_alternate(collect('switches'))})|{_alternate(collect('exact_switches'))}"),
        variants=variants,
    )


def _alternate(names: set[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))


@functools.cache
def _read_table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table
