"""Files inside archives and compressed files, good and bad ones, all served by a real server."""

from pathlib import Path

import pytest
from local_server import BODY, HALF, LocalServer, Served, fault, from_server, in_turn, left_beside
from small_archives import COMPRESS, tar_of, zip_of

from relm.corpus.download.fetch import download

pytestmark = pytest.mark.usefixtures("plain_surroundings")


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_a_compressed_file_is_unpacked(server: LocalServer, destination: Path, kind: str) -> None:
    server.answers["/thing"] = in_turn(Served(COMPRESS[kind](BODY), cut_after=HALF), Served(COMPRESS[kind](BODY)))
    download("thing.bin", from_server(server, "/thing", decompress=kind), destination)
    assert destination.read_bytes() == BODY
    assert server.requests[1].headers["range"] == f"bytes={HALF}-"
    assert left_beside(destination) == ["thing.bin", "thing.bin.json"]


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_a_truncated_compressed_file_is_refused(server: LocalServer, destination: Path, kind: str) -> None:
    server.answers["/thing"] = Served(COMPRESS[kind](BODY)[:-2000])
    assert "damaged or truncated" in fault(from_server(server, "/thing", decompress=kind), destination)
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


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (zip_of({"pack/thong": b"x"}), "no pack/thing among its 1 members, such as pack/thong"),
        (tar_of({"../pack/thing": b"x"}), "no pack/thing among its 1 members"),
        (tar_of({}, links={"pack/thing": "/etc/passwd"}), "a link or a device"),
        (zip_of({"pack/thing": BODY})[:-1000], "damaged or truncated"),
        (tar_of({"pack/thing": BODY})[:-1000], "damaged or truncated"),
        (zip_of({"pack/thing": bytes(50_000_000)}), "more than the expected 300,000 bytes"),
        (zip_of({"pack/thing": BODY[:-1]}), "has 299,999 bytes with sha256"),
        (b"<html>Sign in</html>", "the archive is truncated"),
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
    message = fault(remote, destination)
    assert f"the recipe expects {'0' * 64}" in message
    assert "correct it and the size below files.thing.bin in its recipe\n" in message
