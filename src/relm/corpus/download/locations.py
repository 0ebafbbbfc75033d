"""Addresses from which bytes are requested, with the login they need and the digests that the bytes must have."""

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import requests

from relm.corpus.download.source_faults import FILE_HASH, SourceFault, clip
from relm.recipes.files.web_address import is_web_address


class Check(NamedTuple):
    """A digest that received bytes must have."""

    algorithm: str
    digest: str
    """In hexadecimal digits."""
    stated_by: str = "the recipe"
    key: str | None = FILE_HASH
    """The key of the recipe that states it; None: an index does."""


@dataclass(frozen=True)
class Location:
    """One address, and the digests known for its bytes before they are fetched."""

    url: str
    checks: tuple[Check, ...] = ()
    auth: requests.auth.AuthBase | None = None
    size: int | None = None
    """Count of its bytes, where an index states it."""


class BearerToken(requests.auth.AuthBase):
    """Sends a token in the Authorization header, which `requests` drops on a redirect to another host."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def redact_url(url: str) -> str:
    """Return an address without its user, password, query and fragment, which may hold secrets.

    >>> redact_url("https://me:secret@host:8080/a/b.zip?signature=x#y")
    'https://host:8080/a/b.zip'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
    return clip(urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", "")), most=500)


def require_web_location(url: str) -> None:
    """Raise SourceFault unless an address is one of http or https, with a host."""
    if not is_web_address(url):
        raise SourceFault(f"expected an http or https address, found {redact_url(url)}")


def has_same_origin(first: str, second: str) -> bool:
    """Return whether two addresses have the same scheme, host and port."""
    try:
        return _parse_origin(first) == _parse_origin(second)
    except ValueError:
        return False


def _parse_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
