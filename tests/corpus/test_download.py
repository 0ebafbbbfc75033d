"""Downloads against a real HTTP server: the right bytes or none, and a message that says why."""

import datetime
import email.utils
import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from local_server import (
    BODY,
    HALF,
    LocalServer,
    Served,
    fault,
    from_server,
    in_turn,
    left_beside,
    remote_file,
    running_server,
    status,
)

import relm.corpus.download.fetch as module
from relm.artifact import read_sidecar
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from relm.recipes.files.remote_files import RemoteFile, Source

pytestmark = pytest.mark.usefixtures("plain_surroundings")

# --- right answers --------------------------------------------------------------------------------------------------------


def test_the_right_bytes_arrive_with_a_sidecar_and_nothing_else(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    sentence = download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert read_sidecar(destination) == {
        "file": "thing.bin",
        "sha256": hashlib.sha256(BODY).hexdigest(),
        "size": len(BODY),
    }
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]
    assert "300,000 bytes from http://127.0.0.1" in sentence


def test_a_file_that_is_there_is_not_requested_again(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    assert "already there" in download("thing.bin", from_server(server), destination)
    assert len(server.requests) == 1


def test_a_right_file_without_a_sidecar_only_gets_one(server: LocalServer, destination: Path) -> None:
    destination.parent.mkdir(parents=True)
    destination.write_bytes(BODY)
    assert "already there" in download("thing.bin", from_server(server), destination)
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]
    assert server.requests == []


def test_a_changed_file_is_replaced_although_its_size_is_right(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    destination.write_bytes(bytes(len(BODY)))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY


# --- wrong answers --------------------------------------------------------------------------------------------------------


def test_wrong_bytes_are_refused_with_both_hashes_and_nothing_is_kept(server: LocalServer, destination: Path) -> None:
    wrong = bytes(len(BODY))
    server.answers["/thing.bin"] = Served(wrong)
    message = fault(from_server(server), destination)
    assert hashlib.sha256(wrong).hexdigest() in message
    assert hashlib.sha256(BODY).hexdigest() in message
    assert server.url("/thing.bin") in message
    assert left_beside(destination) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (status(200, {"Content-Length": "300004"}), "has 300,004 bytes, expected 300,000"),  # and no body ever
        (Served(BODY + bytes(10_000_000), length=False), "has more than the expected 300,000 bytes"),
    ],
    ids=["stated", "endless"],
)
def test_a_file_of_another_length_is_left(server: LocalServer, destination: Path, answer, message: str) -> None:
    server.answers["/thing.bin"] = answer
    assert message in fault(from_server(server), destination)
    assert left_beside(destination) == []


def test_after_a_wrong_source_the_next_one_serves(server: LocalServer, destination: Path) -> None:
    server.answers |= {"/wrong": Served(bytes(len(BODY))), "/right": Served(BODY)}
    remote = remote_file(BODY, Source(url=server.url("/wrong")), Source(url=server.url("/right")))
    assert "/right in " in download("thing.bin", remote, destination)
    assert destination.read_bytes() == BODY


@pytest.mark.parametrize("code", [404, 403])
def test_a_refusal_is_not_requested_again(server: LocalServer, destination: Path, code: int) -> None:
    server.answers["/thing.bin"] = status(code)
    assert f"HTTP {code}" in fault(from_server(server), destination)
    assert len(server.requests) == 1


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for milliseconds in place of minutes."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.004)


@pytest.mark.usefixtures("quick_pauses")
def test_a_hub_that_has_too_many_requests_for_long_is_waited_for(
    server: LocalServer, destination: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = [status(429, {"Retry-After": "0"})] * 30
    cut, whole = Served(BODY, cut_after=HALF, etag='"1"'), Served(BODY, etag='"1"')
    server.answers["/thing.bin"] = in_turn(*refusals, cut, *refusals, whole)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert server.requests[-1].headers["range"] == f"bytes={HALF}-"
    assert "HTTP 429 Too Many Requests; trying again in 0 s, no longer than 2 h" in capsys.readouterr().err


def test_another_source_is_asked_before_a_throttled_one_again(server: LocalServer, destination: Path) -> None:
    server.answers |= {"/busy": status(429, {"Retry-After": "3600"}), "/gone": status(404), "/right": Served(BODY)}
    download("thing.bin", remote_file(BODY, *(Source(url=server.url(path)) for path in server.answers)), destination)
    assert [request.path for request in server.requests] == ["/busy", "/gone", "/right"]


@pytest.mark.usefixtures("quick_pauses")
def test_a_source_is_not_waited_for_longer_than_the_limit(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = email.utils.format_datetime(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=3), usegmt=True)
    server.answers |= {"/busy": status(429, {"Retry-After": later}), "/gone": status(404)}
    message = fault(remote_file(BODY, *(Source(url=server.url(path)) for path in server.answers)), destination)
    assert (message.count("HTTP 429"), message.count("HTTP 404")) == (1, 1)
    assert len(server.requests) == 2


def test_when_all_fail_each_is_listed_and_the_way_by_hand_is_reported(server: LocalServer, destination: Path) -> None:
    server.answers["/wrong"] = Served(bytes(len(BODY)))
    server.answers["/broken"] = status(500)
    with running_server() as gone:
        closed = gone.url("/closed")
    urls = [server.url("/missing"), server.url("/wrong"), server.url("/broken"), closed]
    message = fault(remote_file(BODY, *(Source(url=url) for url in urls)), destination)
    lines = {line.split(": ", 1)[0].removeprefix("  - "): line for line in message.splitlines() if line.startswith("  - ")}
    assert list(lines) == urls
    assert "HTTP 404" in lines[urls[0]]
    assert "sha256" in lines[urls[1]]
    assert "HTTP 500" in lines[urls[2]]
    assert "Connection refused" in lines[urls[3]]
    assert "(2 attempts)" in lines[urls[3]]
    assert "put thing.bin or missing or wrong" in message
    assert "RELM_MIRROR" in message


def test_secrets_in_an_address_stay_out_of_the_message(server: LocalServer, destination: Path) -> None:
    with running_server() as gone:
        closed = gone.server_port
    url = f"http://me:secret1@127.0.0.1:{closed}/a?signature=secret2"
    message = fault(remote_file(BODY, Source(url=url)), destination)
    assert f"http://127.0.0.1:{closed}/a: " in message
    assert "secret" not in message


# --- the disk -------------------------------------------------------------------------------------------------------------


def test_a_file_larger_than_the_disk_is_refused_before_a_byte_comes(server: LocalServer, destination: Path) -> None:
    huge = 10**18
    server.answers["/thing.bin"] = status(200, {"Content-Length": str(huge)})
    remote = RemoteFile(sha256="0" * 64, size=huge, sources=[Source(url=server.url("/thing.bin"))])
    message = fault(remote, destination)
    assert "needs 1,000,000 TB" in message
    assert "RELM_IGNORE_LIMITS=1" in message
    assert left_beside(destination) == []


def test_the_archive_counts_too_in_the_disk_check(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = status(200, {"Content-Length": str(2 * 10**18)})
    remote = RemoteFile(sha256="0" * 64, size=10**18, sources=[Source(url=server.url("/pack"), member="thing")])
    assert "needs 3,000,000 TB" in fault(remote, destination)


SMALL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from relm.recipes.files.remote_files import RemoteFile
remote, disk = RemoteFile.model_validate_json(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)], check=True)
outcome = {}
def attempt(step):
    try:
        outcome[step] = download("thing.bin", remote, disk / "thing.bin")
    except RelmError as error:
        outcome[step] = str(error)
    outcome[step + " left"] = sorted(path.name for path in disk.iterdir())
attempt("refused")
os.environ["RELM_IGNORE_LIMITS"] = "1"
attempt("full")
subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
attempt("room")
outcome["right"] = (disk / "thing.bin").read_bytes() == bytes.fromhex(Path(sys.argv[3]).read_text())
print(json.dumps(outcome))
"""


def can_mount(folder: Path) -> bool:
    folder.mkdir()
    script = f"mount -t tmpfs -o size=64k tmpfs {folder}"
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's mount namespaces")
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_full_disk_is_reported_and_the_download_resumes(server: LocalServer, tmp_path: Path, compression: str | None) -> None:
    disk = tmp_path / "disk"
    if not can_mount(disk):
        pytest.skip("this system does not let tests mount a small disk")
    body = gzip.compress(BODY) if compression else BODY
    server.answers["/thing.bin"] = Served(body)
    (tmp_path / "body.hex").write_text(BODY.hex())
    remote = from_server(server, **({"decompress": compression} if compression else {}))
    arguments = [remote.model_dump_json(), str(disk), str(tmp_path / "body.hex")]
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", SMALL_DISK, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert "RELM_IGNORE_LIMITS=1" in outcome["refused"]
    assert outcome["refused left"] == []
    assert "cannot be written: No space left on device. Make room" in outcome["full"]
    assert outcome["full left"] == [".thing.bin.part", ".thing.bin.part.json"]
    assert "300,000 bytes from" in outcome["room"]
    assert outcome["room left"] == ["thing.bin", "thing.bin.json"]
    assert outcome["right"]
    assert "range" in server.requests[-1].headers


def test_a_folder_that_cannot_be_made_is_reported(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RelmError, match="cannot be written: File exists"):
        download("thing.bin", from_server(server), tmp_path / "file" / "thing.bin")
