"""Addresses of web pages and files in YAML files, which become links in pages that others open."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, WithJsonSchema

SCHEMES = ("https", "http")
# What ends a link in Markdown or HTML; an address has these as escapes such as %20.
_ENDS_A_LINK = re.compile(r"[\s<>\"\\^`{|}]")


def is_web_address(address: str) -> bool:
    """Return whether an address is one of http or https, with a host.

    >>> [is_web_address(text) for text in ("https://a.example:8080/b", "ftp://a.example", "http:///b", "http://a.example:port")]
    [True, False, False, False]
    """
    try:
        parts = urlsplit(address)
        return parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port with letters, or half of an IPv6 address
        return False


def require_web_address(address: str) -> str:
    """Return an address if it is a whole web address."""
    is_whole = is_web_address(address) and address.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))
    if not is_whole:
        raise ValueError(
            "expected a whole address that begins with https:// or http://, such as https://example.org/data/file.txt"
        )
    if found := _ENDS_A_LINK.search(address):
        raise ValueError(f"the address has {found[0]!r}, which is not allowed there; write it as %{ord(found[0]):02X}")
    return address


WebAddress = Annotated[
    str, AfterValidator(require_web_address), WithJsonSchema({"type": "string", "pattern": '^https?://[^\\s<>"\\\\^`{|}]+$'})
]
"""An address with the scheme https or http."""
