"""A session of HTTP requests in which the head of an answer has a deadline, and redirects are left to the caller.

The timeouts of `requests` count from one byte to the next, so a server that sends a byte a second never exceeds them.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import requests
import urllib3

from relm.corpus.download.connection_errors import ANSWER_TIMEOUT, CONNECTION_ERRORS, SlowAnswer

Answer = TypeVar("Answer")

logging.getLogger("urllib3.connection").setLevel(logging.ERROR)  # at a lower level it prints a traceback of each faulty head


class Session(requests.Session):
    """A session with deadlines that follows no redirects: `requests` reads a redirect's body into memory, however long."""

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _PromptAdapter())

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return None: `open_location` follows redirects itself."""
        return None


def _answer_in_time(connection: socket.socket, read_head: Callable[[], Answer]) -> Answer:
    """Return what reads the head of an answer, or raise SlowAnswer after ANSWER_TIMEOUT."""
    expired = threading.Event()

    def end_connection() -> None:
        expired.set()
        with contextlib.suppress(OSError, ValueError, AttributeError):  # TLS within TLS, through a proxy, has no shutdown
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ANSWER_TIMEOUT, end_connection)
    timer.daemon = True
    timer.start()
    try:
        answer = read_head()
    except CONNECTION_ERRORS:
        if expired.is_set():
            raise SlowAnswer from None
        raise
    finally:
        timer.cancel()
    if expired.is_set():  # a head that was cut short reads like a whole one
        raise SlowAnswer
    return answer


class _PromptConnection(urllib3.connection.HTTPConnection):
    def getresponse(self) -> Any:
        return _answer_in_time(self.sock, super().getresponse)


class _PromptTLSConnection(urllib3.connection.HTTPSConnection):
    def getresponse(self) -> Any:
        return _answer_in_time(self.sock, super().getresponse)


class _PromptPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PromptConnection


class _PromptTLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _PromptTLSConnection


POOLS = {"http": _PromptPool, "https": _PromptTLSPool}


class _PromptAdapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        if not proxy.lower().startswith("socks"):  # these have pools of their own
            manager.pool_classes_by_scheme = POOLS
        return manager
