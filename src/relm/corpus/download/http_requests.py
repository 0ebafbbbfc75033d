"""Requests for files over HTTP, whose every failure is a fault of the source.

Messages never show an address's password or query, which may hold tokens.
"""

import email.utils
import re
import time
from urllib.parse import urljoin

import requests

from relm.corpus.download.connection_errors import CONNECT_TIMEOUT, CONNECTION_ERRORS, READ_TIMEOUT, explain_connection_error
from relm.corpus.download.hub_files import read_hugging_face_endpoint
from relm.corpus.download.locations import Location, has_same_origin, require_web_location
from relm.corpus.download.source_faults import SourceFault, TemporaryFault, Throttled, Unreachable, clip

MOST_REDIRECTS = 10


def open_location(session: requests.Session, location: Location, headers: dict[str, str]) -> requests.Response:
    """Return a streamed response of status 200, 206 or 416, with the bytes as stored (no transfer compression requested).

    Redirects are followed here, because `requests` reads the whole body of a redirect into memory.
    """
    url, auth = location.url, location.auth
    for _ in range(1 + MOST_REDIRECTS):
        response = _request(session, url, auth, headers)
        if not response.is_redirect:
            return _require_usable(response, location)
        response.close()
        target = _find_target(response, url)
        if session.should_strip_auth(url, target):  # type: ignore[no-untyped-call]
            auth = None
        url = target
    raise SourceFault(f"redirects more than {MOST_REDIRECTS} times")


def _request(
    session: requests.Session, url: str, auth: requests.auth.AuthBase | None, headers: dict[str, str]
) -> requests.Response:
    try:
        return session.get(
            url,
            headers={"Accept-Encoding": "identity", **headers},
            auth=auth,
            stream=True,
            allow_redirects=False,
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
        )
    except ValueError as error:  # `requests` refuses the address itself; UnicodeError, from a host that is no name, is one too
        raise SourceFault(f"cannot be requested ({type(error).__name__})") from None
    except CONNECTION_ERRORS as error:
        raise Unreachable(explain_connection_error(error)) from None


def _find_target(response: requests.Response, url: str) -> str:
    """Return the address to which a response redirects."""
    try:
        # The header is UTF-8, which http.client decodes as Latin-1.
        target = urljoin(url, response.headers["location"].encode("latin-1").decode("utf-8"))
    except ValueError:
        raise SourceFault("redirects to an address that cannot be read") from None
    require_web_location(target)
    return target


def _require_usable(response: requests.Response, location: Location) -> requests.Response:
    """Return a response that has the wanted bytes, or says that there are no more; close any other."""
    if response.status_code in (200, 206, 416):
        return response
    response.close()
    status = f"HTTP {response.status_code} {clip(response.reason or '')}".rstrip()
    if response.status_code == 429:
        raise Throttled(status, _parse_retry_after(response.headers.get("Retry-After", "")))
    if response.status_code == 408 or response.status_code >= 500:
        raise TemporaryFault(status)
    gated = response.status_code in (401, 403) and has_same_origin(location.url, read_hugging_face_endpoint())
    hint = "; the repository is private or gated: set HF_TOKEN to a token that may read it" if gated else ""
    raise SourceFault(f"{status}{hint}")


def _parse_retry_after(value: str) -> float | None:
    """Return the seconds of a Retry-After, which is a number of them or a date; None: it is absent or neither.

    >>> _parse_retry_after("120"), _parse_retry_after("soon")
    (120.0, None)
    """
    if re.fullmatch("[0-9]{1,9}", value.strip()):
        return float(value)
    try:
        then = email.utils.parsedate_to_datetime(value)
        return max(0.0, then.timestamp() - time.time())
    except (TypeError, ValueError, OverflowError, OSError):
        return None
