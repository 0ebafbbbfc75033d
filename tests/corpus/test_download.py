"""Downloads against a real HTTP server: whatever happens on the way, the right bytes or none."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_server import LocalServer, Served, in_turn, redirect, remote_file, running_server, status

from relm.corpus import sources, transfer
from relm.corpus.download import download
from relm.errors import RelmError
from relm.recipe import RemoteFile, Source

BODY = random.Random(0).randbytes(300_000)  # incompressible, so that compressed sizes are known well enough
HALF = len(BODY) // 2


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in list(os.environ):
        if variable.lower().endswith("_proxy") or variable.startswith(("RELM_", "HF_", "PIP_", "npm_config")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.01)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "data" / "set" / "thing.bin"


def from_server(server: LocalServer, path: str = "/thing.bin", body: bytes = BODY, **source: str) -> RemoteFile:
    return remote_file(body, Source(url=server.url(path), **source))


def left_beside(destination: Path) -> list[str]:
    return sorted(path.name for path in destination.parent.iterdir())


def fault(remote: RemoteFile, destination: Path) -> str:
    with pytest.raises(RelmError) as caught:
        download("thing.bin", remote, destination)
    assert not destination.exists()
    assert not destination.with_name("thing.bin.json").exists()
    return str(caught.value)


# --- the plain way ---------------------------------------------------------------------------------------------------------


def test_the_right_bytes_arrive_with_a_sidecar_and_nothing_else(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    sentence = download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert json.loads(destination.with_name("thing.bin.json").read_text()) == {
        "file": "thing.bin",
        "sha256": hashlib.sha256(BODY).hexdigest(),
        "size": len(BODY),
    }
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]
    assert "300,000 bytes from http://127.0.0.1" in sentence


def test_a_file_that_is_there_is_not_asked_for_again(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    assert "already there" in download("thing.bin", from_server(server), destination)
    assert len(server.asked) == 1


def test_a_right_file_without_a_sidecar_only_gets_one(server: LocalServer, destination: Path) -> None:
    destination.parent.mkdir(parents=True)
    destination.write_bytes(BODY)
    assert "already there" in download("thing.bin", from_server(server), destination)
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]
    assert server.asked == []


def test_a_changed_file_is_replaced_although_its_size_is_right(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    destination.write_bytes(bytes(len(BODY)))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY


def test_a_body_without_a_length_arrives(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY, length=False)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY


def test_a_chunked_body_arrives(server: LocalServer, destination: Path) -> None:
    def chunked(handler):
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in (BODY[:70_000], BODY[70_000:]):
            handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True

    server.answers["/thing.bin"] = chunked
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY


def test_a_gzip_file_labelled_as_encoded_is_stored_as_it_is(server: LocalServer, destination: Path) -> None:
    packed = gzip.compress(b"text" * 1000)
    server.answers["/thing.bin"] = Served(packed, headers={"Content-Encoding": "gzip"})
    download("thing.bin", from_server(server, body=packed), destination)
    assert destination.read_bytes() == packed


# --- cuts, stalls, kills ---------------------------------------------------------------------------------------------------


def test_a_cut_connection_resumes(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(BODY, etag='"1"', cut_after=HALF), Served(BODY, etag='"1"'))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    first, second = server.asked
    assert "range" not in first.headers
    assert second.headers["range"] == f"bytes={HALF}-"
    assert second.headers["if-range"] == '"1"'
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


def test_a_cut_without_a_known_length_resumes(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(BODY, length=False, cut_after=HALF), Served(BODY))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert server.asked[1].headers["range"] == f"bytes={HALF}-"


def test_a_stalled_server_is_left_and_resumed(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "READ_TIMEOUT", 0.3)
    release = threading.Event()
    server.answers["/thing.bin"] = in_turn(Served(BODY, cut_after=HALF, stall=release), Served(BODY))
    download("thing.bin", from_server(server), destination)
    release.set()
    assert destination.read_bytes() == BODY
    assert server.asked[1].headers["range"] == f"bytes={HALF}-"


def test_a_slow_trickle_is_waited_for(server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "READ_TIMEOUT", 0.6)
    server.answers["/thing.bin"] = Served(BODY, pieces=(len(BODY) // 10, 0.1))  # 1 s in all, never 0.6 s without a byte
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert len(server.asked) == 1


def test_many_cuts_are_survived_while_each_brings_something(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MEANINGFUL_PROGRESS", 20_000)
    server.answers["/thing.bin"] = Served(BODY, cut_after=25_000)
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert len(server.asked) == 12


def test_cuts_at_the_same_place_without_ranges_end(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY, ranges=False, cut_after=HALF)
    assert "the connection was cut" in fault(from_server(server), destination)
    assert len(server.asked) == transfer.ATTEMPTS


def test_a_server_without_ranges_starts_again_cleanly(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(BODY, cut_after=HALF), Served(BODY, ranges=False))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert server.asked[1].headers["range"] == f"bytes={HALF}-"


def test_what_came_is_kept_for_the_next_call(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(BODY, cut_after=HALF), status(404))
    assert "HTTP 404" in fault(from_server(server), destination)
    assert left_beside(destination) == [".thing.bin.part", ".thing.bin.part.json"]
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    assert server.asked[-1].headers["range"] == f"bytes={HALF}-"
    assert destination.read_bytes() == BODY


def test_a_part_of_another_source_is_not_gone_on_from(server: LocalServer, destination: Path) -> None:
    server.answers |= {"/old": in_turn(Served(BODY, cut_after=HALF), status(404)), "/new": Served(BODY)}
    fault(from_server(server, "/old"), destination)
    download("thing.bin", from_server(server, "/new"), destination)
    assert "range" not in server.asked[-1].headers
    assert destination.read_bytes() == BODY


def test_a_file_that_changed_on_the_server_is_fetched_from_its_beginning(
    server: LocalServer, destination: Path
) -> None:
    old = bytes(len(BODY))
    server.answers["/thing.bin"] = in_turn(Served(old, etag='"old"', cut_after=HALF), Served(BODY, etag='"new"'))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert len(server.asked) == 2


def test_pieces_of_two_versions_are_fetched_once_more_in_one_piece(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(Served(bytes(len(BODY)), cut_after=HALF), Served(BODY))  # no ETag gives it away
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY
    assert [request.headers.get("range") for request in server.asked] == [None, f"bytes={HALF}-", None]


@pytest.mark.parametrize(("already", "requests"), [(BODY, 1), (BODY + b"more", 2)], ids=["complete", "too long"])
def test_a_range_that_cannot_be_satisfied_is_understood(
    server: LocalServer, destination: Path, already: bytes, requests: int
) -> None:
    remote = from_server(server)
    destination.parent.mkdir(parents=True)
    with transfer.Part(destination) as part:
        part.begin(remote.sources[0], "")
        part.append(already)
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", remote, destination)
    assert destination.read_bytes() == BODY
    assert len(server.asked) == requests


CHILD = """
import sys
from pathlib import Path
from relm.corpus.download import download
from relm.recipe import RemoteFile
download("thing.bin", RemoteFile.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_killed_process_is_gone_on_from(server: LocalServer, destination: Path) -> None:
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
    assert server.asked[-1].headers["range"] == f"bytes={HALF}-"
    assert destination.read_bytes() == BODY
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


# --- wrong answers ---------------------------------------------------------------------------------------------------------


def test_wrong_bytes_are_refused_with_both_hashes_and_nothing_is_kept(server: LocalServer, destination: Path) -> None:
    wrong = bytes(len(BODY))
    server.answers["/thing.bin"] = Served(wrong)
    message = fault(from_server(server), destination)
    assert hashlib.sha256(wrong).hexdigest() in message
    assert hashlib.sha256(BODY).hexdigest() in message
    assert server.url("/thing.bin") in message
    assert left_beside(destination) == []


@pytest.mark.parametrize("length", [True, False])
def test_a_longer_file_is_refused_and_nothing_is_kept(server: LocalServer, destination: Path, length: bool) -> None:
    server.answers["/thing.bin"] = Served(BODY + b"more", length=length)
    assert "expected 300,000" in fault(from_server(server), destination)
    assert left_beside(destination) == []


def test_after_a_wrong_source_the_next_one_serves(server: LocalServer, destination: Path) -> None:
    server.answers |= {"/wrong": Served(bytes(len(BODY))), "/right": Served(BODY)}
    remote = remote_file(BODY, Source(url=server.url("/wrong")), Source(url=server.url("/right")))
    assert "/right in " in download("thing.bin", remote, destination)
    assert destination.read_bytes() == BODY


@pytest.mark.parametrize("code", [404, 403])
def test_a_refusal_is_not_asked_again(server: LocalServer, destination: Path, code: int) -> None:
    server.answers["/thing.bin"] = status(code)
    assert f"HTTP {code}" in fault(from_server(server), destination)
    assert len(server.asked) == 1


def test_a_server_error_is_asked_again(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = in_turn(status(500), status(503), Served(BODY))
    download("thing.bin", from_server(server), destination)
    assert destination.read_bytes() == BODY


def test_when_all_fail_each_is_listed_and_the_way_by_hand_is_told(server: LocalServer, destination: Path) -> None:
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
    assert "put thing.bin or missing or wrong" in message
    assert "RELM_MIRROR" in message


def test_secrets_in_an_address_stay_out_of_the_message(server: LocalServer, destination: Path) -> None:
    with running_server() as gone:
        closed = gone.server_port
    url = f"http://me:secret1@127.0.0.1:{closed}/a?signature=secret2"
    message = fault(remote_file(BODY, Source(url=url)), destination)
    assert f"http://127.0.0.1:{closed}/a: " in message
    assert "secret" not in message


# --- proxies and tokens ----------------------------------------------------------------------------------------------------


def test_a_proxy_is_respected(server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url())
    monkeypatch.setenv("no_proxy", "")
    server.answers["http://files.example/thing.bin"] = Served(BODY)
    download("thing.bin", remote_file(BODY, Source(url="http://files.example/thing.bin")), destination)
    assert destination.read_bytes() == BODY


def hub_file(**more: str) -> Source:
    return Source(huggingface="owner/name", revision="abc", file="data/thing.bin", **more)


TOKEN = "hf_thisIsTheSecret"


def test_the_hub_gets_the_token_and_another_host_does_not(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url(host="localhost"))
    monkeypatch.setenv("HF_TOKEN", TOKEN + "\n")
    with running_server() as storage:
        storage.answers["/blob"] = Served(BODY)
        server.answers["/owner/name/resolve/abc/data/thing.bin"] = redirect(storage.url("/blob"))
        sentence = download("thing.bin", remote_file(BODY, hub_file()), destination)
        assert destination.read_bytes() == BODY
        assert server.asked[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert "authorization" not in storage.asked[0].headers
    printed = capfd.readouterr()
    assert TOKEN not in sentence + printed.out + printed.err + destination.with_name("thing.bin.json").read_text()


def test_another_source_never_gets_the_token(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    assert "authorization" not in server.asked[0].headers


def test_a_gated_repository_asks_for_a_token_and_shows_none(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.answers["/datasets/owner/name/resolve/abc/data/thing.bin"] = status(401)
    message = fault(remote_file(BODY, hub_file(repository_type="dataset")), destination)
    assert "HTTP 401" in message
    assert "set HF_TOKEN" in message
    printed = capfd.readouterr()
    assert TOKEN not in message + printed.out + printed.err


def test_a_token_that_cannot_be_sent_is_refused_unseen(
    server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret one\nsecret two")
    message = fault(remote_file(BODY, hub_file()), destination)
    assert message.startswith("HF_TOKEN:")
    assert "secret" not in message


# --- archives and compression ----------------------------------------------------------------------------------------------

COMPRESS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
SUFFIX = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz"}


def zip_of(members: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return archive.getvalue()


def tar_of(members: dict[str, bytes], mode: str = "w:gz", links: dict[str, str] | None = None) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode) as file:
        for name, to in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            file.addfile(entry)
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_a_compressed_file_is_unpacked(server: LocalServer, destination: Path, kind: str) -> None:
    server.answers["/thing"] = in_turn(Served(COMPRESS[kind](BODY), cut_after=HALF), Served(COMPRESS[kind](BODY)))
    download("thing.bin", from_server(server, "/thing", decompress=kind), destination)
    assert destination.read_bytes() == BODY
    assert server.asked[1].headers["range"] == f"bytes={HALF}-"
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_a_truncated_compressed_file_is_refused(server: LocalServer, destination: Path, kind: str) -> None:
    server.answers["/thing"] = Served(COMPRESS[kind](BODY)[:-2000])
    assert "damaged or cut off" in fault(from_server(server, "/thing", decompress=kind), destination)
    assert left_beside(destination) == []


@pytest.mark.parametrize(
    "archive",
    [
        zip_of({"other": b"x", "pack/thing": BODY}),
        tar_of({"other": b"x", "pack/thing": BODY}, "w:gz"),
        tar_of({"other": b"x", "pack/thing": BODY}, "w:xz"),
        tar_of({"other": b"x", "pack/thing": BODY}, "w"),
    ],
    ids=["zip", "tar.gz", "tar.xz", "tar"],
)
def test_one_member_is_read_from_an_archive(server: LocalServer, destination: Path, archive: bytes) -> None:
    server.answers["/pack"] = Served(archive)
    download("thing.bin", from_server(server, "/pack", member="pack/thing"), destination)
    assert destination.read_bytes() == BODY
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


def test_a_compressed_member_is_unpacked_twice(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = Served(tar_of({"pack/thing.gz": gzip.compress(BODY)}))
    download("thing.bin", from_server(server, "/pack", member="pack/thing.gz", decompress="gzip"), destination)
    assert destination.read_bytes() == BODY


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (zip_of({"pack/thong": b"x"}), "no pack/thing among its 1 members, such as pack/thong"),
        (tar_of({"../pack/thing": b"x"}), "no pack/thing among its 1 members"),
        (tar_of({}, links={"pack/thing": "/etc/passwd"}), "a link or a device"),
        (zip_of({"pack/thing": BODY})[:-1000], "damaged or cut off"),
        (tar_of({"pack/thing": BODY})[:-1000], "damaged or cut off"),
        (zip_of({"pack/thing": bytes(50_000_000)}), "more than the expected 300,000 bytes"),
        (zip_of({"pack/thing": BODY[:-1]}), "has 299,999 bytes with sha256"),
        (b"<html>Sign in</html>", "damaged or cut off"),
    ],
    ids=["absent", "outside", "link", "cut zip", "cut tar", "bomb", "short", "page"],
)
def test_an_archive_with_another_content_is_refused(
    server: LocalServer, destination: Path, archive: bytes, reason: str
) -> None:
    server.answers["/pack"] = Served(archive)
    assert reason in fault(from_server(server, "/pack", member="pack/thing"), destination)
    assert left_beside(destination) == []


def test_a_wrong_archive_is_refused_before_it_is_opened(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = Served(zip_of({"pack/thing": BODY}))
    remote = from_server(server, "/pack", member="pack/thing", sha256="0" * 64)
    assert f"the recipe expects {'0' * 64}" in fault(remote, destination)


# --- folders of one's own --------------------------------------------------------------------------------------------------


def unreachable(name: str = "thing.bin", **source: str) -> RemoteFile:
    return remote_file(BODY, Source(url=f"http://127.0.0.1:9/{name}", **source))  # port 9, discard: nobody listens


@pytest.mark.parametrize("kind", ["", "gzip", "bzip2", "xz"])
def test_a_mirror_serves_by_name(destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    kept = tmp_path / "mirror" / "deep" / "er" / f"thing.bin{SUFFIX.get(kind, '')}"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(COMPRESS[kind](BODY) if kind else BODY)
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "mirror"))
    assert str(kept) in download("thing.bin", unreachable(), destination)
    assert destination.read_bytes() == BODY
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]
    kept.write_bytes(b"changed later")
    assert destination.read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "content", "source"),
    [
        ("pack.zip", zip_of({"in/thing": BODY}), {"name": "pack.zip", "member": "in/thing"}),
        ("thing.gz", gzip.compress(BODY), {"name": "pack.tgz", "member": "in/thing.gz", "decompress": "gzip"}),
        ("thing", BODY, {"name": "pack.zip", "member": "in/thing"}),
        ("other.xz", lzma.compress(BODY), {"name": "other.xz", "decompress": "xz"}),
        ("other.bin", BODY, {"name": "other.bin"}),
    ],
    ids=["archive", "compressed member", "member", "compressed file", "name in the address"],
)
def test_a_mirror_serves_under_every_name_of_the_source(
    destination: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    source: dict[str, str],
) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / name).write_bytes(content)
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "mirror"))
    download("thing.bin", unreachable(**source), destination)
    assert destination.read_bytes() == BODY


def test_a_wrong_file_of_the_right_name_in_a_mirror_is_passed_over(
    server: LocalServer, destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, content in {"a": bytes(len(BODY)), "b": b"short", "c": BODY}.items():
        (tmp_path / "mirror" / place).mkdir(parents=True)
        (tmp_path / "mirror" / place / "thing.bin").write_bytes(content)
    (tmp_path / "mirror" / "a" / "thing.bin.gz").write_bytes(b"no gzip")
    (tmp_path / "mirror" / "b" / "thing.bin.xz").symlink_to("nowhere")
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "mirror"))
    assert "mirror/c/thing.bin" in download("thing.bin", from_server(server), destination)
    (tmp_path / "mirror" / "c" / "thing.bin").unlink()
    destination.unlink()
    destination.with_name("thing.bin.json").unlink()
    message = fault(from_server(server), destination)
    assert "a/thing.bin: has 300,000 bytes with sha256" in message
    assert "a/thing.bin.gz: is damaged or cut off" in message
    assert "b/thing.bin: has 5 bytes, expected 300,000" in message
    assert "b/thing.bin.xz: cannot be read: No such file" in message


def test_several_mirrors_are_searched_in_order_before_the_sources(
    server: LocalServer, destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    for folder in ("empty", "full"):
        (tmp_path / folder).mkdir()
    (tmp_path / "full" / "thing.bin").write_bytes(BODY)
    monkeypatch.setenv("RELM_MIRROR", f"{tmp_path / 'empty'}{os.pathsep}{tmp_path / 'full'}")
    download("thing.bin", from_server(server), destination)
    assert server.asked == []


def test_the_sidecar_is_the_same_whichever_source_served(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), tmp_path / "one" / "thing.bin")
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "one"))
    download("thing.bin", unreachable(), tmp_path / "two" / "thing.bin")
    one, two = (tmp_path / place / "thing.bin.json" for place in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_mirror_that_is_no_folder_is_an_error(destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_MIRROR", "/nowhere/at/all")
    assert "RELM_MIRROR: /nowhere/at/all is not a folder" in fault(unreachable(), destination)


# --- the disk --------------------------------------------------------------------------------------------------------------


def test_a_file_larger_than_the_disk_is_refused_before_a_byte_comes(server: LocalServer, destination: Path) -> None:
    huge = 10**18
    server.answers["/thing.bin"] = status(200, {"Content-Length": str(huge)})
    remote = RemoteFile(sha256="0" * 64, size=huge, sources=[Source(url=server.url("/thing.bin"))])
    message = fault(remote, destination)
    assert "needs 1000000.0 TB" in message
    assert "RELM_IGNORE_LIMITS=1" in message
    assert left_beside(destination) == []


def test_the_archive_counts_too_in_the_disk_check(server: LocalServer, destination: Path) -> None:
    server.answers["/pack"] = status(200, {"Content-Length": str(10**18)})
    assert "needs 1000000.0 TB" in fault(from_server(server, "/pack", member="thing"), destination)


SMALL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from relm.corpus.download import download
from relm.errors import RelmError
from relm.recipe import RemoteFile
remote, disk = RemoteFile.model_validate_json(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)], check=True)
said = {}
def attempt(step):
    try:
        said[step] = download("thing.bin", remote, disk / "thing.bin")
    except RelmError as error:
        said[step] = str(error)
    said[step + " left"] = sorted(path.name for path in disk.iterdir())
attempt("refused")
os.environ["RELM_IGNORE_LIMITS"] = "1"
attempt("full")
subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
attempt("room")
said["right"] = (disk / "thing.bin").read_bytes() == bytes.fromhex(Path(sys.argv[3]).read_text())
print(json.dumps(said))
"""


def can_mount(folder: Path) -> bool:
    folder.mkdir()
    script = f"mount -t tmpfs -o size=64k tmpfs {folder}"
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's mount namespaces")
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_full_disk_is_told_and_gone_on_from(server: LocalServer, tmp_path: Path, compression: str | None) -> None:
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
    said = json.loads(done.stdout)
    assert "RELM_IGNORE_LIMITS=1" in said["refused"]
    assert said["refused left"] == []
    assert "cannot be written: No space left on device; what had come is kept in" in said["full"]
    assert said["full left"] == [".thing.bin.part", ".thing.bin.part.json"]
    assert "300,000 bytes from" in said["room"]
    assert said["room left"] == ["thing.bin", "thing.bin.json"]
    assert said["right"]
    assert "range" in server.asked[-1].headers


LIMITED = """
import resource, sys
from pathlib import Path
from relm.corpus.download import download
from relm.errors import RelmError
from relm.recipe import RemoteFile
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    download("thing.bin", RemoteFile.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
except RelmError as error:
    print(error)
"""


def test_a_file_size_limit_is_told_and_gone_on_from(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    remote = from_server(server)
    arguments = [sys.executable, "-c", LIMITED, remote.model_dump_json(), str(destination)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "cannot be written: File too large; what had come is kept in" in done.stdout
    assert not destination.exists()
    download("thing.bin", remote, destination)
    assert server.asked[-1].headers["range"] == "bytes=100000-"
    assert destination.read_bytes() == BODY


def test_a_folder_that_cannot_be_made_is_told(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RelmError, match="cannot be written: Not a directory"):
        download("thing.bin", from_server(server), tmp_path / "file" / "thing.bin")


