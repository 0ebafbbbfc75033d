"""Pages of package indexes and registries: requested as by their own clients, and never executed."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import requests

from relm.corpus.http_requests import explain_connection_error, open_location
from relm.corpus.locations import Location, parse_origin, redact_url
from relm.corpus.source_faults import SourceFault, TemporaryFault

LARGEST_METADATA = 64 << 20  # bytes of an index page; the largest simple pages are about 20 MB


@dataclass(frozen=True)
class IndexPage:
    """An index page: its address after redirects, its Content-Type, its content."""

    url: str
    kind: str
    content: bytes


def fetch_index_page(session: requests.Session, url: str, accept: str) -> IndexPage:
    try:
        with open_location(session, Location(url), {"Accept": accept, "Accept-Encoding": "gzip, identity"}) as response:
            if response.status_code != 200:
                raise SourceFault(f"HTTP {response.status_code} where an index page was expected")
            content = b""
            for block in response.iter_content(1 << 20):
                content += block
                if len(content) > LARGEST_METADATA:
                    raise SourceFault(f"over {LARGEST_METADATA:,} bytes where an index page was expected")
            return IndexPage(response.url or url, response.headers.get("Content-Type", ""), content)
    except requests.RequestException as error:
        raise TemporaryFault(f"{redact_url(url)}: {explain_connection_error(error)}") from None
    except SourceFault as fault:
        raise type(fault)(f"{redact_url(url)}: {fault}") from None


def choose_login(index: str, url: str) -> requests.auth.AuthBase | None:
    """Return the user and password in an index's address, for files on the same host."""
    parts = urlsplit(index)
    if parts.username is None or parse_origin(index) != parse_origin(url):
        return None
    return requests.auth.HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))
