"""A real HTTP server on this machine with faults on request: cuts, stalls, errors, redirects, with or without ranges."""

import hashlib
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from relm.artifact import sidecar_of
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from relm.recipes.files.remote_files import RemoteFile, Source
from small_servers import QuietHandler, running

BODY = random.Random(0).randbytes(300_000)  # incompressible, so that half of a packed file is never the whole
HALF = len(BODY) // 2

Answer = Callable[[QuietHandler], None]


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    """Names in lower case."""


class LocalServer(ThreadingHTTPServer):
    """Answers GET by path; records all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[Request] = []

    def url(self, path: str = "", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print no traceback for a client that disconnects in the middle: that is part of the tests."""


class _Handler(QuietHandler):
    server: LocalServer

    def do_GET(self) -> None:
        self.server.requests.append(Request(self.path, {key.lower(): value for key, value in self.headers.items()}))
        self.server.answers.get(self.path, status(404))(self)


def running_server() -> AbstractContextManager[LocalServer]:
    """Run a server for the length of a block."""
    return running(LocalServer())


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
    return lambda handler: handler.respond(code, body, headers)


def redirect(to: str) -> Answer:
    return status(302, {"Location": to})


def in_turn(*answers: Answer) -> Answer:
    """Return an answer that gives the first request the first answer and so on, and the last one for ever."""
    left = list(answers)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)


@dataclass
class Served:
    """A file as a server sends it."""

    body: bytes
    etag: str | None = None
    ranges: bool = True
    length: bool = True
    """True if the response has a Content-Length."""
    cut_after: int | None = None
    """Close the connection after this many bytes of the body."""
    stall: threading.Event | None = None
    """With cut_after: wait for this instead of closing."""
    pieces: tuple[int, float] | None = None
    """Send this many bytes at once, and wait this many seconds after each."""
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, handler: QuietHandler) -> None:
        start = self._start(handler)
        if start is not None and start >= len(self.body):
            status(416, {"Content-Range": f"bytes */{len(self.body)}"})(handler)
            return
        body = self.body[start or 0 :]
        handler.send_response(200 if start is None else 206)
        if self.length:
            handler.send_header("Content-Length", str(len(body)))
        if start is not None:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        for key, value in {**({"ETag": self.etag} if self.etag else {}), **self.headers}.items():
            handler.send_header(key, value)
        handler.end_headers()
        self._send(handler, body)

    def _start(self, handler: QuietHandler) -> int | None:
        match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if match is None or not self.ranges or handler.headers.get("If-Range", self.etag) != self.etag:
            return None
        return int(match[1])

    def _send(self, handler: QuietHandler, body: bytes) -> None:
        size, pause = self.pieces or (len(body) or 1, 0.0)
        body = body[: self.cut_after]
        for at in range(0, len(body), size):
            handler.wfile.write(body[at : at + size])
            handler.wfile.flush()
            time.sleep(pause)
        if self.stall is not None:
            self.stall.wait(30)
        handler.close_connection = True


def remote_file(body: bytes, *sources: Source) -> RemoteFile:
    return RemoteFile(sha256=hashlib.sha256(body).hexdigest(), size=len(body), sources=list(sources))


def from_server(server: LocalServer, path: str = "/thing.bin", body: bytes = BODY, **source: str) -> RemoteFile:
    """Return a remote file with the content `body`, whose one source is an address of the server."""
    return remote_file(body, Source(url=server.url(path), **source))


def left_beside(destination: Path) -> list[str]:
    """Return the names of all files in the destination's folder."""
    return sorted(path.name for path in destination.parent.iterdir())


def fault(remote: RemoteFile, destination: Path) -> str:
    """Return the message of a download that must fail and leave nothing that looks finished."""
    with pytest.raises(RelmError) as caught:
        download("thing.bin", remote, destination)
    assert not destination.exists()
    assert not sidecar_of(destination).exists()
    return str(caught.value)
