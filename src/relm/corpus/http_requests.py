"""Requests for files over HTTP, whose every failure is a fault of the source.

Messages never show an address's password or query, which may hold tokens.
"""

from collections.abc import Iterator
from typing import Any

import requests
import urllib3

from relm.corpus.hub_files import read_hugging_face_endpoint
from relm.corpus.locations import Location, parse_origin
from relm.corpus.source_faults import SourceFault, TemporaryFault, Unreachable

CONNECT_TIMEOUT, READ_TIMEOUT = 15.0, 60.0  # seconds; reading: between two blocks, not for the whole file


def open_location(session: requests.Session, location: Location, headers: dict[str, str]) -> requests.Response:
    """Return a streamed response of status 200, 206 or 416, with the bytes as stored (no transfer compression requested).

    Raises:
        Unreachable: no connection, or no answer in time.
        TemporaryFault: 429 or a server error.
        SourceFault: any other answer.
    """
    try:
        response = session.get(
            location.url,
            headers={"Accept-Encoding": "identity", **headers},
            auth=location.auth,
            stream=True,
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
        )
    except (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL, requests.TooManyRedirects) as error:
        raise SourceFault(f"cannot be requested ({type(error).__name__})") from None
    except requests.RequestException as error:
        raise Unreachable(explain_connection_error(error)) from None
    if response.status_code in (200, 206, 416):
        return response
    status = f"HTTP {response.status_code} {response.reason or ''}".rstrip()
    response.close()
    if response.status_code in (408, 429) or response.status_code >= 500:
        raise TemporaryFault(status)
    gated = response.status_code in (401, 403) and parse_origin(location.url) == parse_origin(read_hugging_face_endpoint())
    hint = "; the repository is private or gated: set HF_TOKEN to a token that may read it" if gated else ""
    raise SourceFault(f"{status}{hint}")


def explain_connection_error(error: BaseException) -> str:
    """Return the meaning of an exception of `requests` or `urllib3`, without its text, which shows whole addresses."""
    kinds: list[tuple[Any, str]] = [
        ((requests.ConnectTimeout,), f"no connection within {CONNECT_TIMEOUT:g} s"),
        ((requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError), f"no data for {READ_TIMEOUT:g} s"),
        ((requests.exceptions.ProxyError, urllib3.exceptions.ProxyError), "the proxy does not answer or refuses"),
        ((requests.exceptions.SSLError, urllib3.exceptions.SSLError), "no trusted connection (TLS)"),
        ((urllib3.exceptions.ProtocolError,), "the connection was cut"),
    ]
    causes = list(_list_causes(error))
    for types, words in kinds:
        if any(isinstance(cause, types) for cause in causes):
            reason = next((str(cause.verify_message) for cause in causes if hasattr(cause, "verify_message")), "")
            return f"{words}: {reason}" if reason else words
    system = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return f"the connection failed ({system[-1] if system else type(causes[-1]).__name__})"


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all exceptions it wraps, the innermost last."""
    seen: list[BaseException] = []
    pending: list[Any] = [error]
    while pending:
        cause = pending.pop(0)
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            yield cause
            pending += [getattr(cause, "reason", None), cause.__cause__, cause.__context__, *cause.args]
