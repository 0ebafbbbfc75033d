"""Exceptions of the libraries that connect to a server, and their meaning for a message."""

import http.client
from collections.abc import Iterator
from typing import Any

import requests
import urllib3

CONNECT_TIMEOUT, READ_TIMEOUT = 15.0, 60.0  # seconds; reading: between two blocks, not for the whole file
ANSWER_TIMEOUT = 120.0  # seconds for the whole head of an answer
# ValueError and AttributeError come from inside urllib3 and ssl when a connection ends under them.
CONNECTION_ERRORS = (
    urllib3.exceptions.HTTPError,
    requests.RequestException,
    http.client.HTTPException,
    OSError,
    ValueError,
    AttributeError,
)


class SlowAnswer(TimeoutError):
    """The head of an answer did not come to its end in time."""


TIMEOUTS = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)


def is_timeout(error: BaseException) -> bool:
    """Return whether a connection ended because nothing came for READ_TIMEOUT."""
    return any(isinstance(cause, TIMEOUTS) for cause in _list_causes(error))


def explain_connection_error(error: BaseException) -> str:
    """Return the meaning of an exception of `requests` or `urllib3`, without its text, which shows whole addresses."""
    kinds: list[tuple[Any, str]] = [
        ((SlowAnswer,), f"no whole answer within {ANSWER_TIMEOUT:g} s"),
        ((requests.ConnectTimeout,), f"no connection within {CONNECT_TIMEOUT:g} s"),
        (TIMEOUTS, f"no data for {READ_TIMEOUT:g} s"),
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
