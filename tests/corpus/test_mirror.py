"""The user's own folder instead of the network: files are found by name and trusted only by content."""

import gzip
import lzma
import os
from pathlib import Path

import pytest
from local_server import BODY, LocalServer, Served, fault, from_server, left_beside, remote_file
from small_archives import COMPRESS, SUFFIX, zip_of

from relm.corpus.download.fetch import download
from relm.errors import RelmError
from relm.recipes.files.remote_files import RemoteFile, Source

pytestmark = pytest.mark.usefixtures("plain_surroundings")

# --- the user's own folders -----------------------------------------------------------------------------------------------


def unreachable(name: str = "thing.bin", **source: str) -> RemoteFile:
    return remote_file(BODY, Source(url=f"http://127.0.0.1:9/{name}", **source))  # port 9, discard: nobody listens


@pytest.mark.parametrize("kind", ["", "gzip", "bzip2", "xz"])
def test_a_mirror_serves_by_name(destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    kept = tmp_path / "mirror" / "deep" / "er" / f"thing.bin{SUFFIX.get(kind, '')}"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(COMPRESS.get(kind, bytes)(BODY))
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


def test_a_wrong_file_of_the_right_name_in_a_mirror_is_skipped(
    server: LocalServer, destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, content in {"a": bytes(len(BODY)), "b": b"short", "c": BODY}.items():
        (tmp_path / "mirror" / folder).mkdir(parents=True)
        (tmp_path / "mirror" / folder / "thing.bin").write_bytes(content)
    (tmp_path / "mirror" / "a" / "thing.bin.gz").write_bytes(b"no gzip")
    (tmp_path / "mirror" / "b" / "thing.bin.xz").symlink_to("nowhere")
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "mirror"))
    assert "mirror/c/thing.bin" in download("thing.bin", from_server(server), destination)
    (tmp_path / "mirror" / "c" / "thing.bin").unlink()
    destination.unlink()
    destination.with_name("thing.bin.json").unlink()
    message = fault(from_server(server), destination)
    assert "a/thing.bin: has 300,000 bytes with sha256" in message
    assert "a/thing.bin.gz: is damaged or truncated" in message
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
    assert server.requests == []


def test_the_sidecar_is_the_same_whichever_source_served(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), tmp_path / "one" / "thing.bin")
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "one"))
    download("thing.bin", unreachable(), tmp_path / "two" / "thing.bin")
    one, two = (tmp_path / folder / "thing.bin.json" for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_mirror_that_is_no_folder_is_an_error(destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_MIRROR", "/nowhere/at/all")
    assert "RELM_MIRROR: expected folders, found /nowhere/at/all" in fault(unreachable(), destination)


def test_a_wrong_hash_names_the_file_to_correct(destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "thing.bin").write_bytes(BODY[::-1])
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(RelmError) as caught:
        download("thing.bin", unreachable(), destination, "recipes/data/thing.yaml")
    advice = (
        "If the publisher states the other sha256, correct it and the size below files.thing.bin in recipes/data/thing.yaml"
    )
    assert advice in str(caught.value)
