"""Request files over HTTP at a minimum rate; every failure is a fault of the source.

Messages never show an address's password or query, which may contain tokens.
"""

import email.utils
import functools
import http.client
import io
import logging
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import requests
import urllib3

from relm.corpus.download.locations import Location, has_same_origin, read_hugging_face_endpoint, require_web_location
from relm.corpus.download.source_faults import SourceFault, Stalled, TemporaryFault, Throttled, Unreachable, clip

CONNECT_TIMEOUT, READ_TIMEOUT = 15.0, 60.0  # seconds; reading: between two blocks, not for the whole file
SLOWEST_RATE, RATE_WINDOW = 1000, 60.0  # bytes a second, on average over this many seconds of waiting
MOST_REDIRECTS = 10
PIECE = 1 << 18  # most bytes to read from the connection at once
# urllib3 and ssl raise ValueError and AttributeError when a connection ends under them.
CONNECTION_ERRORS = (
    urllib3.exceptions.HTTPError,
    requests.RequestException,
    http.client.HTTPException,
    OSError,
    ValueError,
    AttributeError,
)
TIMEOUTS = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)

logging.getLogger("urllib3.connection").setLevel(logging.ERROR)  # otherwise it prints a traceback of each faulty head


class _PacedBytes(io.RawIOBase):
    """Bytes of a connection, head and body, at a minimum rate: `requests` would accept one byte a second for ever."""

    def __init__(self, raw: Any) -> None:
        super().__init__()
        self._raw, self._received, self._waited = raw, 0, 0.0
        self.is_head = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        started = time.monotonic()
        count = self._raw.readinto(buffer) or 0
        self._received += count
        self._waited += time.monotonic() - started  # a slow disk is not the server's fault
        if count and self._waited > RATE_WINDOW:
            if self.is_head:
                raise Stalled(f"no whole answer within {RATE_WINDOW:g} s")
            if self._received < SLOWEST_RATE * RATE_WINDOW:
                raise Stalled(f"fewer than {SLOWEST_RATE:,} bytes a second came for {RATE_WINDOW:g} s")
            self._received, self._waited = 0, 0.0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._paced = _PacedBytes(self.fp.detach())
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        super().begin()
        self._paced.is_head = False


@functools.cache
def _make_paced(connection: type) -> type:
    return type(f"Paced{connection.__name__}", (connection,), {"response_class": _PacedResponse})


class _PacedAdapter(requests.adapters.HTTPAdapter):
    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        pool.ConnectionCls = _make_paced(type(pool).ConnectionCls)
        return pool


class Session(requests.Session):
    """A session of paced answers without redirects: `requests` reads a redirect's body of any size into memory."""

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _PacedAdapter())

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return None: `open_location` follows redirects itself."""
        return None


def open_location(session: requests.Session, location: Location, headers: dict[str, str]) -> requests.Response:
    """Return a streamed response of status 200, 206 or 416, with the bytes as stored: no transfer compression is requested."""
    url, auth = location.url, location.auth
    for _ in range(1 + MOST_REDIRECTS):
        require_web_location(url)
        response = _request(session, url, auth, headers)
        if not response.is_redirect:
            return _require_usable(response, location)
        response.close()
        try:
            # The header is UTF-8, which http.client decodes as Latin-1.
            target = urljoin(url, response.headers["location"].encode("latin-1").decode("utf-8"))
        except ValueError:
            raise SourceFault("redirects to an address that cannot be read") from None
        require_web_location(target)
        if session.should_strip_auth(url, target):  # type: ignore[no-untyped-call]
            auth = None
        url = target
    raise SourceFault(f"redirects more than {MOST_REDIRECTS} times")


def _request(session: requests.Session, url: str, auth: Any, headers: dict[str, str]) -> requests.Response:
    asked = {"Accept-Encoding": "identity", **headers}
    timeout = (CONNECT_TIMEOUT, READ_TIMEOUT)
    try:
        return session.get(url, headers=asked, auth=auth, stream=True, allow_redirects=False, timeout=timeout)
    except ValueError as error:  # of the address; UnicodeError, from a bad host name, is one too
        raise SourceFault(f"cannot be requested ({type(error).__name__})") from None
    except CONNECTION_ERRORS as error:
        raise Unreachable(_explain(error)) from None


def _require_usable(response: requests.Response, location: Location) -> requests.Response:
    """Return a response that has the wanted bytes, or says that none are left (416); close any other."""
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
    """Return the seconds of a Retry-After, which is a number or a date; None: it is absent or neither.

    >>> _parse_retry_after("120"), _parse_retry_after("soon")
    (120.0, None)
    """
    if re.fullmatch("[0-9]{1,9}", value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def read_body(response: requests.Response) -> Iterator[bytes]:
    """Yield the body of an answer as it was sent, without unpacking a .gz file labelled `Content-Encoding: gzip`."""
    while True:
        try:
            block = response.raw.read1(PIECE, decode_content=False)
        except CONNECTION_ERRORS as error:
            is_timeout = any(isinstance(cause, TIMEOUTS) for cause in _list_causes(error))
            raise (Stalled if is_timeout else TemporaryFault)(_explain(error)) from None
        if not block:
            return
        yield block


def _explain(error: BaseException) -> str:
    """Return the meaning of an exception of `requests` or `urllib3`, without its text, which has whole addresses."""
    kinds: list[tuple[Any, str]] = [
        (requests.ConnectTimeout, f"no connection within {CONNECT_TIMEOUT:g} s"),
        (TIMEOUTS, f"no data for {READ_TIMEOUT:g} s"),
        ((requests.exceptions.ProxyError, urllib3.exceptions.ProxyError), "the proxy gives no answer or rejects the request"),
        ((requests.exceptions.SSLError, urllib3.exceptions.SSLError), "no trusted connection (TLS)"),
        (urllib3.exceptions.ProtocolError, "the connection was cut"),
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
