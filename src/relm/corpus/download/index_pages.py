"""Pages of package indexes and registries: requested as by their own clients, and never executed."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import requests

from relm.corpus.download.http_requests import open_location
from relm.corpus.download.locations import Location, has_same_origin, redact_url
from relm.corpus.download.response_body import read_body
from relm.corpus.download.source_faults import SourceFault, TemporaryFault, clip

LARGEST_METADATA = 32 << 20  # bytes of an index page: the largest have about 20 MB. Parsed, a page may take 25 times as many
UNPACKED = 1 << 16  # bytes unpacked at once, at most
# What reading a page of any content can raise; RecursionError: thousands of nested brackets; AssertionError: from html.parser.
PAGE_FAULTS = (ValueError, LookupError, TypeError, AttributeError, RecursionError, AssertionError)


@dataclass(frozen=True)
class IndexPage:
    """An index page: its address after redirects, its Content-Type, its content."""

    url: str
    kind: str
    content: bytes


def fetch_index_page(session: requests.Session, url: str, accept: str) -> IndexPage:
    """Return an index page of LARGEST_METADATA at most.

    Args:
        accept: the kinds of page that are understood, as in the Accept header.
    """
    try:
        with open_location(session, Location(url), {"Accept": accept, "Accept-Encoding": "gzip, identity"}) as response:
            if response.status_code != 200:
                raise SourceFault(f"HTTP {response.status_code} where an index page was expected")
            content = bytearray()
            for block in _unpack(read_body(response), response.headers.get("Content-Encoding", "identity").strip().lower()):
                content += block
                if len(content) > LARGEST_METADATA:
                    raise SourceFault(f"over {LARGEST_METADATA:,} bytes where an index page was expected")
            return IndexPage(response.url or url, response.headers.get("Content-Type", ""), bytes(content))
    except SourceFault as fault:
        raise type(fault)(f"{redact_url(url)}: {fault}") from None


def _unpack(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the content of a page in small blocks: a few bytes of gzip may hold a thousand times as many."""
    if encoding in ("", "identity"):
        yield from blocks
        return
    if encoding not in ("gzip", "x-gzip"):
        raise SourceFault(f"the page has Content-Encoding {clip(encoding)}, expected gzip or none")
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        for block in blocks:
            while block:
                yield unpacker.decompress(block, UNPACKED)
                block = unpacker.unconsumed_tail
        yield unpacker.flush()
    except zlib.error:
        raise SourceFault("the page is no valid gzip") from None
    if not unpacker.eof:
        raise TemporaryFault("the page was cut")


def choose_login(index: str, url: str) -> requests.auth.AuthBase | None:
    """Return the user and password in an index's address, for files on the same host."""
    parts = urlsplit(index)
    if parts.username is None or not has_same_origin(index, url):
        return None
    return requests.auth.HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))
