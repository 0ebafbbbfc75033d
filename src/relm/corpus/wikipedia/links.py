"""Replace links between pages by the text that they show."""

import functools
import re

from relm.corpus import compiled
from relm.corpus.wikipedia.lines import INDENT
from relm.corpus.wikipedia.templates import NOTHING

DEEPEST = 12  # links inside links, as in text_passes.c

_LINK_START = re.compile(r"\[\[(?=\[?(?!\[))")  # of [[[ the first two, of more the two before the last
_LANGUAGE = re.compile(r"(?!mw$|wp$)[a-z]{2,3}(?:-[a-z]+)*|simple|nds-nl|be-x-old|tokipona")
_PICTURE = re.compile(r"\.(?:jpe?g|png|gif|svg|tiff?|og[gv]|webm|midi?|djvu|pdf|bmp)\s*", re.IGNORECASE)

# Prefixes of links to Wikipedia's sister projects, https://meta.wikimedia.org/wiki/Interwiki_map.
_PROJECTS = frozenset({
    "w", "wikt", "wiktionary", "b", "wikibooks", "c", "commons", "d", "wikidata", "m", "meta", "mw", "n", "wikinews", "q",
    "wikiquote", "s", "wikisource", "species", "wikispecies", "v", "wikiversity", "voy", "wikivoyage",
})  # fmt: skip


def replace_links(text: str, hidden: frozenset[str]) -> str:
    """Replace each [[link]] by the text that it shows, those inside another first.

    Links into ``hidden`` namespaces, in lower case, show nothing. First spaces that begin lines become `INDENT`; others may get
    there when links and templates vanish.
    """
    if compiled.replace_links:
        return compiled.replace_links(text, functools.partial(_choose_link_text, hidden=hidden))
    text = text.replace("\n ", f"\n{INDENT}")
    for _ in range(DEEPEST):
        outside, *pieces = _LINK_START.split(text) if "[[[" in text else text.split("[[")
        shown = [outside]
        show = shown.append
        found = False
        for piece in pieces:
            body, closing, rest = piece.partition("]]")
            if not closing:
                show("[[")
                show(piece)
                continue
            found = True
            target, bar, label = body.partition("|")
            if ":" in target or (bar and not label) or target[:1] == "/":
                show(_choose_link_text(target, bar, label, hidden))
            elif not bar and target[:1] == "#" and shown[-1].endswith("\n"):
                show(NOTHING + target)  # not an item of a list
            else:
                show(label or target)
            show(rest)
        if not found:
            break
        text = "".join(shown)
    return text


def _choose_link_text(target: str, bar: str, label: str, hidden: frozenset[str]) -> str:
    """Return the text that a link shows: its label, its target, or nothing for images, categories and interlanguage links."""
    prefix, colon, rest = target.partition(":")
    if rest.startswith("//") or target.startswith("//"):  # an address needs single brackets
        return f"[{NOTHING}[{target}{bar}{label}]]"
    shows_nothing = colon and _shows_nothing(prefix, hidden)
    if shows_nothing or (shows_nothing is None and _PICTURE.search(rest, max(len(rest) - 6, 0))):
        return ""
    if not bar:
        return _remove_prefixes(target, hidden)
    # [[Mercury (planet)|]] is short for [[Mercury (planet)|Mercury]]
    return label or (rest if colon else target).partition(" (")[0]


@functools.lru_cache(maxsize=10_000)
def _shows_nothing(prefix: str, hidden: frozenset[str]) -> bool | None:
    """Return whether links with a prefix show nothing; None if it depends on the rest of the target."""
    namespace = prefix.strip()
    if not namespace or namespace.lower() in _PROJECTS:
        return False
    return namespace.lower() in hidden or _LANGUAGE.fullmatch(namespace) is not None or None


def _remove_prefixes(target: str, hidden: frozenset[str]) -> str:
    """Return a link's target without prefixes of other wikis and of categories, as in [[:wikt:fr:mot]]."""
    for _ in range(DEEPEST):
        prefix, colon, rest = target.partition(":")
        namespace = prefix.strip()
        leads = not namespace or namespace.lower() in _PROJECTS or namespace.lower() in hidden or _LANGUAGE.fullmatch(namespace)
        if not (colon and leads and rest.strip()):
            break
        target = rest
    return target
