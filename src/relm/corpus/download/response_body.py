"""The body of an HTTP response, read in blocks at a lowest rate."""

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import requests

from relm.corpus.download.connection_errors import CONNECTION_ERRORS, explain_connection_error, is_timeout
from relm.corpus.download.source_faults import Stalled, TemporaryFault

SLOWEST_RATE, RATE_WINDOW = 1000, 60.0  # bytes a second, on average over so many seconds
PIECE = 1 << 18  # bytes read from the connection at once, at most


def read_body(response: requests.Response) -> Iterator[bytes]:
    """Yield the body of an answer as it was sent: a .gz file labelled `Content-Encoding: gzip` is not unpacked."""
    with _RateGuard(response) as guard:
        while True:
            try:
                with guard.waiting():
                    block = response.raw.read1(PIECE, decode_content=False)
            except CONNECTION_ERRORS as error:
                guard.require_rate()
                kind = Stalled if is_timeout(error) else TemporaryFault
                raise kind(explain_connection_error(error)) from None
            if not block:
                guard.require_rate()
                return
            guard.received += len(block)
            yield block


class _RateGuard:
    """Shuts down the connection of a response that is too slow, from a thread of its own, because reading may block."""

    def __init__(self, response: requests.Response) -> None:
        self.received = 0
        self._response = response
        self._is_waiting = self._is_too_slow = False
        self._window = RATE_WINDOW
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the time in which the server is to send something: a slow disk is not its fault."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def _watch(self) -> None:
        before = 0
        while not self._over.wait(self._window):
            if self._is_waiting and self.received - before < SLOWEST_RATE * self._window:
                self._is_too_slow = True
                with contextlib.suppress(OSError, ValueError, RuntimeError):  # it may have come to its end just now
                    self._response.raw.shutdown()
                return
            before = self.received

    def require_rate(self) -> None:
        """Raise Stalled if the connection was shut down."""
        if self._is_too_slow:
            raise Stalled(f"fewer than {SLOWEST_RATE:,} bytes a second came for {self._window:g} s")
