"""Read the pages of a MediaWiki XML dump as a stream.

It understands the export schemas 0.3 (2005, without ``<ns>``) to 0.11; see https://www.mediawiki.org/wiki/Help:Export. The file
may be plain or compressed by bzip2 (any number of streams), gzip or xz; its first bytes decide. At most a block of the file and
the pages that end in it are in memory.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from relm.corpus.decompression import BLOCK
from relm.corpus.documents import Skipped
from relm.corpus.wikipedia.languages import is_same_language, tag_of
from relm.corpus.wikipedia.names import WikiNames, names_of
from relm.errors import RelmError

# Names before the colon in titles of other pages than articles, for dumps without <ns>; a dump's header adds its names.
_SUBJECTS = (
    "user", "wikipedia", "image", "file", "mediawiki", "template", "help", "category", "portal", "book", "draft", "module",
)  # fmt: skip
OTHER_NAMESPACES = frozenset({"media", "special", "talk", "wp", *_SUBJECTS, *(f"{name} talk" for name in _SUBJECTS)})
HIDDEN_KEYS = (-2, 6, 14)  # media, images, categories

# A dump's elements are at most six deep, and a page has at most 2 MiB of text (MediaWiki's $wgMaxArticleSize).
DEEPEST = 50
LONGEST_TEXT = 1 << 26  # characters
LONGEST_TAG = 1 << 24  # bytes
# A bit for each page up to this id, 128 MiB; the English Wikipedia has ids up to 80 million.
_LARGEST_COMMON_ID = 1 << 30

PAGE_BEGIN, PAGE_END = b"<page>", b"</page>"
_ROOT = b"<mediawiki>"

_KEY = re.compile(r"-?[0-9]{1,18}")


class Page(NamedTuple):
    """An article as wikitext."""

    id: str
    title: str
    wikitext: str


class SeenPages:
    """The ids of the articles so far: of two articles with the same id one is a copy, which would be trained on twice."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._others: set[str] = set()

    def add(self, page_id: str) -> bool:
        """Note an id, and return True if it is new."""
        number = int(page_id) if _KEY.fullmatch(page_id) else -1
        if not 0 <= number < _LARGEST_COMMON_ID:
            is_new = page_id not in self._others
            self._others.add(page_id)
            return is_new
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1, 2 * len(self._bits)) - len(self._bits)))
        is_new = not self._bits[place] & bit
        self._bits[place] |= bit
        return is_new


class Wiki(NamedTuple):
    """A wiki by the header of its dump."""

    names: WikiNames
    """The names that decide what is text, in the dump's language."""
    other_namespaces: frozenset[str]
    """Names, in lower case, that begin the titles of other pages than articles."""
    encoding: str | None = None
    """The encoding in the XML declaration; None: UTF-8."""


UNKNOWN_WIKI = Wiki(names_of("en"), OTHER_NAMESPACES)


def classify_page(wiki: Wiki, title: str, namespace: str | None, is_redirect: bool, text: str, page_id: str) -> Page | Skipped:
    """Return a page as an article, or skip it; without <ns> its title decides the namespace."""
    prefix, colon, _ = title.partition(":")
    if not namespace:
        namespace = str(int(bool(colon) and prefix.strip().lower().replace("_", " ") in wiki.other_namespaces))
    if namespace != "0":
        return Skipped("other_namespaces")
    if is_redirect or wiki.names.redirect.match(text):
        return Skipped("redirects")
    if not text.strip():
        return Skipped("empty")
    return Page(page_id, title, text)


class PartStart(NamedTuple):
    """The beginning of a part of a dump, between two pages."""

    byte: int
    """Bytes of XML before it."""
    line: int
    """Line breaks before it."""
    wiki: Wiki


class DumpParser:
    """Parses the XML of a dump piece by piece, from its beginning or from between two pages.

    A page's latest revision counts. A dump in another language than ``language`` is an error (und: any language).
    """

    def __init__(
        self, path: Path, ends_mid_page: bool = False, start: PartStart | None = None, *, language: str = "und"
    ) -> None:
        self.path = path
        self.ends_mid_page = ends_mid_page
        self.language = language
        self.wiki = UNKNOWN_WIKI if start is None else start.wiki
        """Complete when the first page has been returned."""
        self._begun = False
        self._ready: list[Page | Skipped] = []
        self._open: list[str] = []
        self._characters: list[str] = []
        self._length = 0
        self._namespace_key = 0
        self._revision: dict[str, str] = {}
        self._page: dict[str, str] = {}
        self._parser = self._new_parser()
        self._fed = 0
        self._page_end = -1
        self._before = b""
        self._first_byte, self._first_line = 0, 0
        if start is not None:
            self._parser.Parse(_ROOT, False)
            self._begun, self._fed = True, len(_ROOT)
            self._page_end = self._fed
            self.wiki = start.wiki
            self._first_byte, self._first_line = start.byte - self._fed, start.line

    def _new_parser(self) -> expat.XMLParserType:
        parser = expat.ParserCreate(self.wiki.encoding)
        parser.buffer_text = True
        parser.buffer_size = BLOCK
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        parser.XmlDeclHandler = self._declaration
        if hasattr(parser, "SetReparseDeferralEnabled"):  # otherwise a page may wait for the next piece
            parser.SetReparseDeferralEnabled(False)
        return parser

    @property
    def is_between_pages(self) -> bool:
        """Return True if the XML so far ends with a page directly inside <mediawiki>."""
        return self._page_end == self._fed and len(self._open) == 1

    def feed(self, block: bytes) -> tuple[list[Page | Skipped], RelmError | None]:
        """Parse the next bytes; return the pages that end in them, and the fault after these, if any."""
        fault = self._parse(block)
        self._fed += len(block)
        self._before = block
        pages, self._ready = self._ready, []
        return pages, fault

    def finish(self) -> list[Page | Skipped]:
        """Return the outcome for a page that the end of the file cuts."""
        try:
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            if not self._begun:
                raise self._no_dump("nothing") from None
            if not self.ends_mid_page:
                raise self._cut(error) from None
            if "page" in self._open:
                return [Skipped("cut")]
        return []

    def close(self) -> None:
        """Free the memory at once: the XML parser and this object refer to each other."""
        del self._parser

    # --- the parser's events -----------------------------------------------------------------------------------------------

    def _doctype(self, name: str, *_: object) -> None:
        raise self._no_dump(f"<!DOCTYPE {name}>")

    def _declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        self.wiki = self.wiki._replace(encoding=encoding)

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if not self._begun and tag != "mediawiki":
            raise self._no_dump(f"<{tag}>")
        if not self._begun:
            self.wiki = self.wiki._replace(names=names_of(attributes.get("xml:lang", "en")))
            self._begun = True
            self._require_language(attributes.get("xml:lang", "und"))
        self._open.append(tag)
        if len(self._open) > DEEPEST:
            raise self._damaged(f"<{tag}> is {DEEPEST} elements deep, expected fewer than ten")
        self._clear()
        if tag == "page":
            if "page" in self._open[:-1]:
                raise self._damaged("a <page> begins inside another")
            self._page = {}
        elif tag == "revision":
            self._revision = {"text": ""}
        elif tag == "redirect":
            self._page["redirect"] = tag
        elif tag == "namespace":
            self._namespace_key = self._read_key(attributes.get("key", "0"))

    def _read_key(self, key: str) -> int:
        if not _KEY.fullmatch(key):
            raise self._damaged(f"<namespace>: key: expected a whole number, found {key[:20]!r}")
        return int(key)

    def _text(self, characters: str) -> None:
        self._length += len(characters)
        if self._length > LONGEST_TEXT:
            raise self._damaged(f"<{self._open[-1]}> has more than {LONGEST_TEXT:,} characters")
        self._characters.append(characters)

    def _clear(self) -> None:
        self._characters.clear()
        self._length = 0

    def _end(self, tag: str) -> None:
        self._open.pop()
        parent = self._open[-1] if self._open else ""
        if parent == "page":
            if tag in ("title", "ns", "id"):
                self._page[tag] = "".join(self._characters)
            elif tag == "revision" and self._revision.get("timestamp", "") >= self._page.get("timestamp", ""):
                self._page.update(self._revision)
        elif parent == "revision" and tag in ("timestamp", "model", "text"):
            self._revision[tag] = "".join(self._characters)
        elif parent == "namespaces":
            self._note_namespace("".join(self._characters).lower())
        elif tag == "page":
            self._ready.append(self._classify(self._page))
            self._page = {}
            self._page_end = self._parser.CurrentByteIndex + len(PAGE_END)
        self._clear()

    def _note_namespace(self, name: str) -> None:
        names, others = self.wiki.names, self.wiki.other_namespaces
        if self._namespace_key != 0:
            others |= {name}
        if self._namespace_key in HIDDEN_KEYS:
            names = names._replace(hidden=names.hidden | {name})
        self.wiki = self.wiki._replace(names=names, other_namespaces=others)

    def _classify(self, page: Mapping[str, str]) -> Page | Skipped:
        title, text = page.get("title", ""), page.get("text", "")
        if not title or "id" not in page:
            raise self._damaged("a <page> without <title> or <id> ends here")
        found = classify_page(self.wiki, title, page.get("ns"), "redirect" in page, text, page["id"])
        is_other = isinstance(found, Page) and page.get("model", "wikitext") not in ("", "wikitext")
        return Skipped("not_wikitext") if is_other else found  # a script or a table of data

    # --- faults ------------------------------------------------------------------------------------------------------------

    def _parse(self, block: bytes) -> RelmError | None:
        try:
            self._parser.Parse(block, False)
        except expat.ExpatError as error:
            return self._damage(error, block)
        except RelmError as error:
            return error
        if self._fed + len(block) - self._parser.CurrentByteIndex > LONGEST_TAG:
            return self._damaged("a tag or a comment never ends")
        return None

    def _damaged(self, what: str) -> RelmError:
        line = self._first_line + self._parser.CurrentLineNumber
        return RelmError(f"{self.path}: line {line}: damaged: {what}; download it again, or from another source")

    def _no_dump(self, found: str) -> RelmError:
        return RelmError(
            f"{self.path}: expected a MediaWiki dump, which begins with <mediawiki>, found {found}; "
            "correct the source of the file"
        )

    def _require_language(self, found: str) -> None:
        if not is_same_language(found, self.language):
            raise RelmError(
                f"{self.path}: expected a dump in the dataset's language, {self.language!r}, found xml:lang={found[:20]!r}; "
                f"correct the source of the file, or set `language: {tag_of(found[:20])}` in the dataset's file"
            )

    def _cut(self, error: expat.ExpatError) -> RelmError:
        title = self._page.get("title")
        inside = f"inside the page {title!r}" if title else "before </mediawiki>"
        return RelmError(
            f"{self.path}: ends too early, {inside}, after byte {self._first_byte + self._fed} of its XML "
            f"(line {self._first_line + error.lineno}); "
            "download it again, or set `ends_mid_page: true` for the beginning of a longer file"
        )

    def _damage(self, error: expat.ExpatError, block: bytes) -> RelmError:
        if not self._begun:
            return self._no_dump(repr(block[:20]))
        offset = self._parser.ErrorByteIndex
        # The parser may hold a token from the block before.
        recent = (self._before + block)[offset - (self._fed - len(self._before)) :]
        what = f"not well-formed XML ({expat.ErrorString(error.code)})"
        if _begins_with_invalid_utf8(recent[:4]):
            what = f"not valid UTF-8 (found {recent[:1]!r})"
        line, byte = self._first_line + error.lineno, self._first_byte + offset
        return RelmError(f"{self.path}: line {line}, byte {byte} of its XML: {what}; download it again")


def _begins_with_invalid_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start == 0
    return False
