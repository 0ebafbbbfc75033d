"""Addresses from which bytes are requested, with the login they need and the digests that the bytes must have."""

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import requests

from relm.corpus.source_faults import FILE_HASH


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
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))


def parse_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
