"""Read the pages of a MediaWiki XML dump as a stream.

Understands the export schemas 0.3 (2005, without ``<ns>``) to 0.11; see https://www.mediawiki.org/wiki/Help:Export. The file
may be plain or compressed by bzip2 (one stream or many), gzip or xz, recognised by its first bytes. At most a block of the file
and the pages that end in it are in memory.
"""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple, cast
from xml.parsers import expat

from relm.corpus.documents import Skipped
from relm.corpus.wiki_names import names_of
from relm.errors import RelmError
from relm.progress import ProgressBar

BLOCK = 1 << 20

# Names that begin the titles of pages that are not articles, for dumps without <ns>; a dump's own are added from its header.
_SUBJECTS = (
    "user", "wikipedia", "image", "file", "mediawiki", "template", "help", "category", "portal", "book", "draft", "module",
)  # fmt: skip
OTHER_NAMESPACES = frozenset({"media", "special", "talk", "wp", *_SUBJECTS, *(f"{name} talk" for name in _SUBJECTS)})
HIDDEN_KEYS = (-2, 6, 14)  # media, images, categories

# The elements of a dump stand at most six deep, and a page has at most 2 MiB of text (MediaWiki's $wgMaxArticleSize).
DEEPEST = 50
LONGEST_TEXT = 1 << 26  # characters
LONGEST_TAG = 1 << 24  # bytes
# A bit for each page up to this id, 128 MiB; the English Wikipedia has ids up to 80 million.
_LARGEST_COMMON_ID = 1 << 30

_KEY = re.compile(r"-?[0-9]{1,18}")


class Page(NamedTuple):
    """An article in its source form."""

    id: str
    title: str
    wikitext: str


class SeenPages:
    """The ids of the articles so far: one of two articles with the same id is a copy, which would be trained on twice."""

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


class Dump:
    """A dump to be iterated over once: articles as `Page`, everything else as `Skipped`, in the order of the file.

    Of a page with many revisions, the latest counts.

    Raises:
        RelmError: the file is not a dump, is damaged, or is truncated although ``ends_mid_page`` is false. All pages before the
            fault have been yielded by then.
    """

    def __init__(self, path: Path, ends_mid_page: bool = False) -> None:
        self.path = path
        self.ends_mid_page = ends_mid_page
        self.other_namespaces = set(OTHER_NAMESPACES)
        self.names = names_of("en")
        """The names that decide what is text, in the language that the dump states; complete when the first page is yielded."""
        self._fed = 0
        self._begun = False
        self._ready: list[Page | Skipped] = []
        self._open: list[str] = []
        self._characters: list[str] = []
        self._length = 0
        self._seen = SeenPages()
        self._namespace_key = 0
        self._revision: dict[str, str] = {}
        self._page: dict[str, str] = {}
        self._parser = self._new_parser()

    def _new_parser(self) -> expat.XMLParserType:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.buffer_size = BLOCK
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        return parser

    def __iter__(self) -> Iterator[Page | Skipped]:
        before = b""
        for block in read_decompressed(self.path):
            fault = self._parse(before, block)
            self._fed += len(block)
            yield from self._ready
            self._ready.clear()
            if fault:
                raise fault
            before = block
        yield from self._finish()

    # --- the parser's events -----------------------------------------------------------------------------------------------

    def _doctype(self, name: str, *_: object) -> None:
        raise self._no_dump(f"<!DOCTYPE {name}>")

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if not self._begun and tag != "mediawiki":
            raise self._no_dump(f"<{tag}>")
        if not self._begun:
            self.names = names_of(attributes.get("xml:lang", "en"))
        self._begun = True
        self._open.append(tag)
        if len(self._open) > DEEPEST:
            raise self._damaged(f"<{tag}> stands {DEEPEST} elements deep, expected fewer than ten")
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
            raise self._damaged(f"<namespace> has the key {key[:20]!r}, expected a whole number")
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
        elif parent == "revision" and tag in ("timestamp", "text"):
            self._revision[tag] = "".join(self._characters)
        elif parent == "namespaces":
            self._note_namespace("".join(self._characters).lower())
        elif tag == "page":
            self._ready.append(self._classify(self._page))
            self._page = {}
        self._clear()

    def _note_namespace(self, name: str) -> None:
        if self._namespace_key != 0:
            self.other_namespaces.add(name)
        if self._namespace_key in HIDDEN_KEYS:
            self.names = self.names._replace(hidden=self.names.hidden | {name})

    def _classify(self, page: Mapping[str, str]) -> Page | Skipped:
        title, text = page.get("title", ""), page.get("text", "")
        if not title or "id" not in page:
            raise self._damaged("a <page> without <title> or <id> ends here")
        prefix, colon, _ = title.partition(":")
        namespace = page.get("ns") or str(
            int(bool(colon) and prefix.strip().lower().replace("_", " ") in self.other_namespaces)
        )
        if namespace != "0":
            return Skipped("other_namespaces")
        if "redirect" in page or self.names.redirect.match(text):
            return Skipped("redirects")
        if not text.strip():
            return Skipped("empty")
        if not self._seen.add(page["id"]):
            return Skipped("doubled")
        return Page(page["id"], title, text)

    # --- faults ------------------------------------------------------------------------------------------------------------

    def _parse(self, before: bytes, block: bytes) -> RelmError | None:
        try:
            self._parser.Parse(block, False)
        except expat.ExpatError as error:
            return self._damage(error, before, block)
        except RelmError as error:
            return error
        if self._fed + len(block) - self._parser.CurrentByteIndex > LONGEST_TAG:
            return self._damaged("a tag or a comment never ends")
        return None

    def _finish(self) -> Iterator[Page | Skipped]:
        """Yield or raise what the end of the file means."""
        try:
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            if not self._begun:
                raise self._no_dump("nothing") from None
            if not self.ends_mid_page:
                raise self._cut(error) from None
            if "page" in self._open:
                yield Skipped("cut")

    def _damaged(self, what: str) -> RelmError:
        line = self._parser.CurrentLineNumber
        return RelmError(f"{self.path}: line {line}: {what}: the dump is damaged; download it again, or from another source")

    def _no_dump(self, found: str) -> RelmError:
        return RelmError(
            f"{self.path}: not a MediaWiki dump: expected it to begin with <mediawiki>, found {found}; "
            "correct the source of the file"
        )

    def _cut(self, error: expat.ExpatError) -> RelmError:
        title = self._page.get("title")
        inside = f"inside the page {title!r}" if title else "before </mediawiki>"
        return RelmError(
            f"{self.path}: ends too early, {inside}, after byte {self._fed} of its XML (line {error.lineno}); "
            "download it again, or set `ends_mid_page: true` if it is meant to be the beginning of a longer file"
        )

    def _damage(self, error: expat.ExpatError, before: bytes, block: bytes) -> RelmError:
        if not self._begun:
            return self._no_dump(repr(block[:20]))
        offset = self._parser.ErrorByteIndex
        # The parser may have kept a token from the block before.
        recent = (before + block)[offset - (self._fed - len(before)) :]
        what = f"not well-formed XML ({expat.ErrorString(error.code)})"
        if _begins_with_invalid_utf8(recent[:4]):
            what = f"not valid UTF-8 (found {recent[:1]!r})"
        return RelmError(f"{self.path}: line {error.lineno}, byte {offset} of its XML: {what}; download it again")


def _begins_with_invalid_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start == 0
    return False


def read_decompressed(path: Path) -> Iterator[bytes]:
    """Yield the content of a plain or compressed file in blocks of at most `BLOCK` bytes; shows progress on a terminal.

    Raises:
        RelmError: the file is absent, truncated or damaged.
    """
    try:
        with open(path, "rb") as raw:
            size = path.stat().st_size
            with ProgressBar(total=size, desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
                file = _decompress(raw)
                while block := file.read(BLOCK):
                    bar.update(raw.tell() - bar.n)
                    yield block
    except EOFError:
        raise RelmError(f"{path}: the compressed file is truncated after {size} bytes; download it again") from None
    except (zlib.error, lzma.LZMAError) as error:
        raise RelmError(f"{path}: the compressed file is damaged ({error}); download it again") from None
    except OSError as error:
        hint = "check the path" if error.errno else "the compressed file is damaged, download it again"
        raise RelmError(f"{path}: cannot be read: {error.strerror or error}; {hint}") from None


def _decompress(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"BZh"):
        return bz2.open(raw)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(raw))
    if magic == b"\xfd7zXZ\x00":
        return lzma.open(raw)
    return raw
