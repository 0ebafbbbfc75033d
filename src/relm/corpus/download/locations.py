"""Addresses to request bytes from, with the login they need."""

import os
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import requests

from relm.corpus.download.source_faults import SourceFault, clip
from relm.errors import RelmError
from relm.recipes.files.web_address import is_web_address

HUGGING_FACE = "https://huggingface.co"

Auth = Callable[[requests.PreparedRequest], requests.PreparedRequest]


class Location(NamedTuple):
    """One address."""

    url: str
    auth: Auth | None = None


def redact_url(url: str) -> str:
    """Return an address without its user, password, query and fragment, which may contain secrets.

    >>> redact_url("https://me:secret@host:8080/a/b.zip?signature=x#y")
    'https://host:8080/a/b.zip'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an unreadable address"
    return clip(urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", "")), most=500)


def require_web_location(url: str) -> None:
    """Raise SourceFault unless an address has the scheme http or https, and a host."""
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


def choose_login(index: str, url: str) -> Auth | None:
    """Return the user and password in an index's address, for files on the same host."""
    parts = urlsplit(index)
    if parts.username is None or not has_same_origin(index, url):
        return None
    return requests.auth.HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))


def read_hugging_face_endpoint() -> str:
    """Return HF_ENDPOINT, or the public hub's address, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")


def choose_hugging_face_token(url: str) -> Auth | None:
    """Return a login with the token of HF_TOKEN, if set, for an address on the hub; `requests` drops it on other hosts."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token or not has_same_origin(url, read_hugging_face_endpoint()):
        return None
    if not re.fullmatch(r"[!-~]+", token):
        raise RelmError("HF_TOKEN: contains spaces or characters that no token has; set it to only the token, or unset it")

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign
