"""Servers that send too much or too slowly: a download is bounded in bytes and in time."""

import threading
from pathlib import Path

import pytest
from local_server import BODY, HALF, LocalServer, Served, fault, from_server, in_turn, left_beside, remote_file, status
from small_archives import COMPRESS, zip_of

from relm.corpus.download import http_requests, transfer
from relm.corpus.download.fetch import download
from relm.recipes.files.remote_files import Source
from small_servers import QuietHandler

pytestmark = pytest.mark.usefixtures("plain_surroundings")

PACKED = zip_of({"pack/thing": BODY})


# --- bytes ----------------------------------------------------------------------------------------------------------------


class Endless:
    """A body without an end; records how much of it was sent."""

    def __init__(self, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self.sent, self.code, self.headers = 0, code, headers or {}

    def __call__(self, handler: QuietHandler) -> None:
        handler.send_response(self.code)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        while self.sent < 50_000_000:
            handler.wfile.write(bytes(100_000))
            self.sent += 100_000


@pytest.mark.parametrize("source", [{"member": "pack/thing"}, {"decompress": "gzip"}], ids=["archive", "compressed"])
def test_an_archive_that_does_not_end_is_left(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, str]
) -> None:
    monkeypatch.setattr(transfer, "ARCHIVE_ALLOWANCE", 0)
    server.answers["/pack"] = endless = Endless()
    message = fault(from_server(server, "/pack", **source), destination)
    assert "has more than the expected" in message
    assert "state its size in bytes as the source's `size`" in message
    assert endless.sent < 20_000_000
    assert left_beside(destination) == []


def test_the_size_of_an_archive_that_the_recipe_states_is_its_limit(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = endless = Endless()
    source = Source(url=server.url("/pack"), member="pack/thing", size=len(PACKED))
    assert f"has more than the expected {len(PACKED):,} bytes" in fault(remote_file(BODY, source), destination)
    assert endless.sent < 20_000_000


def test_an_archive_of_another_size_is_refused_before_it_comes(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = status(200, {"Content-Length": str(len(PACKED) + 1)})  # and no body ever
    source = Source(url=server.url("/pack"), member="pack/thing", size=len(PACKED))
    message = fault(remote_file(BODY, source), destination)
    assert f"has {len(PACKED) + 1:,} bytes, expected {len(PACKED):,} bytes; correct the source's `size`" in message


def test_an_archive_of_the_stated_size_arrives(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = in_turn(Served(PACKED, length=False, cut_after=HALF), Served(PACKED))
    download(
        "thing.bin", remote_file(BODY, Source(url=server.url("/pack"), member="pack/thing", size=len(PACKED))), destination
    )
    assert destination.read_bytes() == BODY


def test_a_reported_length_is_a_limit_even_of_a_chunked_body(server: LocalServer, destination: Path) -> None:
    def chunked(handler: QuietHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"186a0\r\n" + bytes(100_000) + b"\r\n" + b"0\r\n\r\n")

    server.answers["/pack"] = chunked
    assert "has more than the expected 100 bytes" in fault(from_server(server, "/pack", member="pack/thing"), destination)


@pytest.mark.parametrize("length", ["\u00b2", "9" * 5000, "-1", "x"])
def test_a_length_that_is_no_count_is_not_believed(server: LocalServer, destination: Path, length: str) -> None:
    def labelled(handler: QuietHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", length)
        handler.end_headers()
        handler.wfile.write(BODY)

    server.answers["/thing.bin"] = labelled
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY


def test_a_redirect_without_an_end_is_not_read(server: LocalServer, destination: Path) -> None:
    endless = Endless(302, {"Location": server.url("/thing.bin")})
    server.answers |= {"/first": endless, "/thing.bin": Served(BODY)}
    download("thing.bin", from_server(server, "/first"), destination)
    assert destination.read_bytes() == BODY
    assert endless.sent < 20_000_000


# --- time -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times that are waited for a server."""
    monkeypatch.setattr(http_requests, "RATE_WINDOW", 0.2)


class Trickle:
    """Sends a few bytes at a time, for ever, until the client leaves or the test ends."""

    def __init__(self, begin: bytes, piece: bytes) -> None:
        self.begin, self.piece, self.over = begin, piece, threading.Event()

    def __call__(self, handler: QuietHandler) -> None:
        handler.wfile.write(self.begin)
        while not self.over.wait(0.02):
            handler.wfile.write(self.piece)


HEAD = b"HTTP/1.0 200 OK\r\nContent-Length: 300000\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TRICKLES = {
    "body": (HEAD + b"\r\n" + BODY[:HALF], b"x"),
    "size of a chunk": (CHUNKED, b"0"),
    "trailers": (CHUNKED + b"0\r\n", b"x: y\r\n"),
    "head": (HEAD, b"x"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("kind", TRICKLES)
@pytest.mark.usefixtures("hasty")
def test_a_source_that_trickles_is_left_for_the_next(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("relm.corpus.download.transfer.ATTEMPTS", 1)
    server.answers["/slow"] = slow = Trickle(*TRICKLES[kind])
    try:
        remote = remote_file(BODY, Source(url=server.url("/slow")), Source(url=server.url("/missing")))
        message = fault(remote, destination)
    finally:
        slow.over.set()
    reason = "no whole answer within" if kind in ("head", "continue") else "fewer than 1,000 bytes a second came for"
    assert f"/slow: {reason} 0.2 s" in message
    assert "/missing: HTTP 404" in message


@pytest.mark.parametrize("kind", ["silent", "slow"])
@pytest.mark.usefixtures("hasty")
def test_a_source_that_sends_a_little_and_stalls_each_time_is_left_for_the_next(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(transfer, "MEANINGFUL_PROGRESS", 20_000)
    if kind == "silent":
        monkeypatch.setattr(http_requests, "READ_TIMEOUT", 0.15)
    over = threading.Event()

    def stall(handler: QuietHandler) -> None:
        Served(BODY, cut_after=25_000)(handler)
        while not over.wait(0.02):
            handler.wfile.write(b"x" if kind == "slow" else b"")

    server.answers |= {"/stalls": stall, "/good": Served(BODY)}
    try:
        download(
            "thing.bin", remote_file(BODY, Source(url=server.url("/stalls")), Source(url=server.url("/good"))), destination
        )
    finally:
        over.set()
    assert destination.read_bytes() == BODY
    assert [request.path for request in server.requests] == ["/stalls"] * transfer.ATTEMPTS + ["/good"]


@pytest.mark.usefixtures("hasty")
def test_stalls_are_survived_while_much_comes_between_them(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MEANINGFUL_AFTER_STALLS", 40_000)
    monkeypatch.setattr(http_requests, "READ_TIMEOUT", 0.15)
    over = threading.Event()
    server.answers["/thing.bin"] = Served(BODY, cut_after=25_000, stall=over)
    try:
        download("thing.bin", from_server(server), destination)
    finally:
        over.set()
    assert destination.read_bytes() == BODY
    assert len(server.requests) > 2 * transfer.ATTEMPTS


@pytest.mark.usefixtures("hasty")
def test_what_came_slowly_is_kept(server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "READ_TIMEOUT", 0.15)
    slow = Trickle(HEAD + b"\r\n" + BODY[:HALF], b"")
    server.answers["/thing.bin"] = in_turn(slow, Served(BODY))
    try:
        download("thing.bin", from_server(server), destination)
    finally:
        slow.over.set()
    assert destination.read_bytes() == BODY
    assert server.requests[1].headers["range"] == f"bytes={HALF}-"


def test_a_slow_server_is_waited_for_while_its_rate_suffices(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "RATE_WINDOW", 0.4)
    server.answers["/thing.bin"] = Served(BODY, pieces=(len(BODY) // 10, 0.05))  # longer than a window in all
    download("thing.bin", from_server(server), destination)
    assert len(server.requests) == 1


def test_a_compressed_file_that_is_larger_than_its_content_arrives(server: LocalServer, destination: Path) -> None:
    packed = COMPRESS["bzip2"](BODY)
    assert len(packed) > len(BODY)
    server.answers["/thing"] = Served(packed, length=False)
    download("thing.bin", from_server(server, "/thing", decompress="bzip2"), destination)
    assert destination.read_bytes() == BODY
