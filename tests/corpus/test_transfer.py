"""Transfers over a real connection that is cut, stalled, killed, or answered in unusual ways."""

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local_server import BODY, HALF, Answer, LocalServer, Served, fault, from_server, in_turn, left_beside, status

from relm.corpus.download import transfer
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from small_servers import QuietHandler

pytestmark = pytest.mark.usefixtures("plain_surroundings")

# --- cuts, stalls, kills --------------------------------------------------------------------------------------------------


def chunked(handler: QuietHandler) -> None:
    """Send the file in two chunks."""
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for piece in (BODY[:70_000], BODY[70_000:]):
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")
    handler.close_connection = True


OTHER_PLACE = status(206, {"Content-Range": f"bytes 7-{len(BODY) - 1}/{len(BODY)}"}, BODY[7:])
PACKED, REST = gzip.compress(b"text" * 1000), f"bytes={HALF}-"
# What a server answers in turn -> the ranges that are requested.
ARRIVALS: dict[str, tuple[tuple[Answer, ...], list[str | None]]] = {
    "cut": ((Served(BODY, etag='"1"', cut_after=HALF), Served(BODY, etag='"1"')), [None, REST]),
    "no length": ((Served(BODY, length=False, cut_after=HALF), Served(BODY)), [None, REST]),
    "no ranges": ((Served(BODY, cut_after=HALF), Served(BODY, ranges=False)), [None, REST]),
    "another version": ((Served(bytes(len(BODY)), etag='"old"', cut_after=HALF), Served(BODY, etag='"new"')), [None, REST]),
    "two versions, no ETag": ((Served(bytes(len(BODY)), cut_after=HALF), Served(BODY), Served(BODY)), [None, REST, None]),
    "another place": ((Served(BODY, cut_after=HALF), OTHER_PLACE, Served(BODY)), [None, REST, None]),
    "chunks": ((chunked,), [None]),
    "after errors": ((status(500), status(503), Served(BODY)), [None, None, None]),
}


@pytest.mark.parametrize(("answers", "ranges"), ARRIVALS.values(), ids=ARRIVALS)
def test_the_file_arrives_whole_by_few_requests(
    server: LocalServer, destination: Path, answers: tuple[Answer, ...], ranges: list[str | None]
) -> None:
    """Resume at the cut, and start again when the rest does not fit."""
    server.answers["/thing.bin"] = in_turn(*answers)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert [request.headers.get("range") for request in server.requests] == ranges
    assert server.requests[-1].headers.get("if-range") == getattr(answers[0], "etag", None)
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


def test_the_stored_bytes_arrive_where_they_are_labelled_as_encoded(server: LocalServer, destination: Path) -> None:
    """Store a gzip file unchanged when its server calls that the encoding of the transfer."""
    server.answers["/thing.bin"] = Served(PACKED, headers={"Content-Encoding": "gzip"})
    download("thing.bin", from_server(server, body=PACKED), destination)
    assert destination.read_bytes() == PACKED


def test_many_cuts_are_survived_while_each_brings_something(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MEANINGFUL_PROGRESS", 20_000)
    server.answers["/thing.bin"] = Served(BODY, cut_after=25_000)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert len(server.requests) == 12


def test_cuts_at_the_same_place_without_ranges_end(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY, ranges=False, cut_after=HALF)
    assert "the connection was cut" in fault(from_server(server), destination)
    assert len(server.requests) == transfer.ATTEMPTS


def test_what_came_is_kept_for_the_next_call(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(BODY, cut_after=HALF), status(404))
    assert "HTTP 404" in fault(from_server(server), destination)
    assert left_beside(destination) == [".thing.bin.part", ".thing.bin.part.json"]
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    assert server.requests[-1].headers["range"] == f"bytes={HALF}-"
    assert destination.read_bytes() == BODY


def test_a_part_of_another_source_is_not_resumed(server: LocalServer, destination: Path) -> None:
    server.answers |= {"/old": in_turn(Served(BODY, cut_after=HALF), status(404)), "/new": Served(BODY)}
    fault(from_server(server, "/old"), destination)
    download("thing.bin", from_server(server, "/new"), destination)
    assert "range" not in server.requests[-1].headers
    assert destination.read_bytes() == BODY


@pytest.mark.parametrize(("already", "requests"), [(BODY, 1), (BODY + b"more", 2)], ids=["complete", "too long"])
def test_a_range_that_cannot_be_satisfied_is_understood(
    server: LocalServer, destination: Path, already: bytes, requests: int
) -> None:
    remote = from_server(server)
    destination.parent.mkdir(parents=True)
    with transfer.PartialFile(destination) as part:
        part.begin(remote.sources[0], "")
        part.append(already)
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", remote, destination)
    assert destination.read_bytes() == BODY
    assert len(server.requests) == requests


def put_link(path: Path) -> None:
    path.symlink_to(path.parent / "precious")


@pytest.mark.parametrize(
    ("put", "found"),
    [(put_link, "a symbolic link"), (os.mkfifo, "a named pipe"), (os.mkdir, "a folder")],
    ids=["link", "pipe", "folder"],
)
@pytest.mark.parametrize("name", [".thing.bin.part", ".thing.bin.partial"])
def test_a_partial_file_that_is_none_is_refused(
    server: LocalServer, destination: Path, name: str, put: Callable[[Path], None], found: str
) -> None:
    destination.parent.mkdir(parents=True)
    precious, partial = destination.with_name("precious"), destination.with_name(name)
    precious.write_text("precious")
    put(partial)
    server.answers["/thing.gz"] = Served(gzip.compress(BODY))
    message = fault(from_server(server, "/thing.gz", decompress="gzip"), destination)
    assert f"{partial}: is {found}; expected no file, or the file that an interrupted attempt left. Move it away" in message
    assert precious.read_text() == "precious"
    assert partial.is_symlink() or not partial.is_file()


def test_a_part_that_is_replaced_while_it_comes_is_not_taken(server: LocalServer, destination: Path) -> None:
    part = destination.with_name(".thing.bin.part")

    def replace_it(handler: QuietHandler) -> None:
        part.unlink()
        part.write_bytes(bytes(len(BODY)))
        Served(BODY)(handler)

    server.answers["/thing.bin"] = replace_it
    assert "was removed or replaced during the download" in fault(from_server(server), destination)


CHILD = """
import sys
from pathlib import Path
from relm.corpus.download.fetch import download
from relm.recipes.files.remote_files import RemoteFile
download("thing.bin", RemoteFile.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_killed_download_resumes(server: LocalServer, destination: Path) -> None:
    release, remote = threading.Event(), from_server(server)
    server.answers["/thing.bin"] = in_turn(Served(BODY, cut_after=HALF, stall=release), Served(BODY))
    child = subprocess.Popen([sys.executable, "-c", CHILD, remote.model_dump_json(), str(destination)])
    part = destination.with_name(".thing.bin.part")
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size == HALF) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(RelmError, match="another process is downloading it"):
        download("thing.bin", remote, destination)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    release.set()
    assert not destination.exists()
    download("thing.bin", remote, destination)
    assert server.requests[-1].headers["range"] == f"bytes={HALF}-"
    assert destination.read_bytes() == BODY
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]
