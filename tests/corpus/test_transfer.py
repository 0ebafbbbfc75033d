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
from local_server import BODY, HALF, LocalServer, Served, fault, from_server, in_turn, left_beside, status

from relm.corpus.download import http_requests, transfer
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from small_servers import QuietHandler

pytestmark = pytest.mark.usefixtures("plain_surroundings")

# --- cuts, stalls, kills --------------------------------------------------------------------------------------------------


def test_a_cut_connection_resumes(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(BODY, etag='"1"', cut_after=HALF), Served(BODY, etag='"1"'))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    first, second = server.requests
    assert "range" not in first.headers
    assert second.headers["range"] == f"bytes={HALF}-"
    assert second.headers["if-range"] == '"1"'
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


@pytest.mark.parametrize(
    "answers",
    [
        (Served(BODY, length=False, cut_after=HALF), Served(BODY)),
        (Served(BODY, cut_after=HALF), Served(BODY, ranges=False)),
        (Served(bytes(len(BODY)), etag='"old"', cut_after=HALF), Served(BODY, etag='"new"')),
    ],
    ids=["no length", "no ranges", "another version"],
)
def test_a_cut_is_followed_by_one_request_of_the_rest(server: LocalServer, destination: Path, answers) -> None:
    server.answers["/thing.bin"] = in_turn(*answers)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert [request.headers.get("range") for request in server.requests] == [None, f"bytes={HALF}-"]


def test_a_stalled_server_is_left_and_resumed(server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "READ_TIMEOUT", 0.3)
    release = threading.Event()
    server.answers["/thing.bin"] = in_turn(Served(BODY, cut_after=HALF, stall=release), Served(BODY))
    download("thing.bin", from_server(server), destination)
    release.set()
    assert destination.read_bytes() == BODY
    assert server.requests[1].headers["range"] == f"bytes={HALF}-"


def test_a_slow_trickle_is_waited_for(server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "READ_TIMEOUT", 1.5)
    server.answers["/thing.bin"] = Served(BODY, pieces=(len(BODY) // 20, 0.1))  # 2 s in all, never 1.5 s without a byte
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert len(server.requests) == 1


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


@pytest.mark.parametrize(
    "answers",
    [
        (Served(bytes(len(BODY)), cut_after=HALF), Served(BODY), Served(BODY)),  # two versions, which no ETag gives away
        (
            Served(BODY, cut_after=HALF),
            status(206, {"Content-Range": f"bytes 7-{len(BODY) - 1}/{len(BODY)}"}, BODY[7:]),
            Served(BODY),
        ),
    ],
    ids=["pieces of two versions", "another place"],
)
def test_a_wrong_rest_is_followed_by_a_request_from_the_beginning(server: LocalServer, destination: Path, answers) -> None:
    server.answers["/thing.bin"] = in_turn(*answers)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert [request.headers.get("range") for request in server.requests] == [None, f"bytes={HALF}-", None]


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
