"""A file without a published sha256: its first download is recorded, and that record rejects another file of its name."""

import hashlib
import json
from pathlib import Path

import pytest
from local_server import BODY, LocalServer, Served
from pydantic import ValidationError

from relm.corpus.download.fetch import download
from relm.corpus.download.first_download import pin, record_of
from relm.errors import RelmError
from relm.recipes.files.remote_files import RemoteFile, Source
from relm.recipes.published_models import PretrainedModel

pytestmark = pytest.mark.usefixtures("plain_surroundings")
OTHER = BODY[:-1] + bytes([BODY[-1] ^ 1])
SHA256 = hashlib.sha256(BODY).hexdigest()


def unpinned(server: LocalServer, **keys: int) -> RemoteFile:
    sizes = keys or {"size": len(BODY)}
    return RemoteFile(sha256="first_download", sources=[Source(url=server.url("/thing.bin"))], **sizes)


def remove(destination: Path) -> None:
    """Remove the file as someone does who wants it downloaded again; its record stays."""
    destination.unlink()
    destination.with_name("thing.bin.json").unlink()


def test_the_first_download_is_recorded_and_the_line_for_the_recipe_printed(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    sentence = download("thing.bin", unpinned(server), destination)
    assert destination.read_bytes() == BODY
    record = json.loads(record_of(destination).read_text())
    assert (record["sha256"], record["size"], record["file"]) == (SHA256, len(BODY), "thing.bin")
    assert record["source"].startswith("http://127.0.0.1")
    assert record["date"].endswith("+00:00")
    assert f"`thing.bin: {{sha256: {SHA256}, size: 300000}}`" in sentence


def test_a_later_download_of_the_same_bytes_is_accepted_and_leaves_the_record(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", unpinned(server), destination)
    record = record_of(destination).read_bytes()
    remove(destination)
    assert "first download" not in download("thing.bin", unpinned(server), destination)
    assert record_of(destination).read_bytes() == record
    assert "already there" in download("thing.bin", unpinned(server), destination)


def test_a_later_download_of_other_bytes_is_refused_with_what_to_do(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", unpinned(server), destination)
    remove(destination)
    server.answers["/thing.bin"] = Served(OTHER)
    with pytest.raises(RelmError) as caught:
        download("thing.bin", unpinned(server), destination)
    assert not destination.exists()
    for part in (
        SHA256,
        hashlib.sha256(OTHER).hexdigest(),
        "This is the sha256 of the first download, on 20",
        "delete that record",
    ):
        assert part in str(caught.value)
    assert record_of(destination).name in str(caught.value)
    assert "correct files.thing.bin.sha256" not in str(caught.value), "the recipe has no sha256 to be corrected"


def test_a_file_that_was_edited_in_place_is_downloaded_again(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", unpinned(server), destination)
    destination.write_bytes(OTHER)
    download("thing.bin", unpinned(server), destination)
    assert destination.read_bytes() == BODY


def test_a_first_download_of_another_size_is_refused(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY + b"more")
    with pytest.raises(RelmError, match="expected 300,000 bytes"):
        download("thing.bin", unpinned(server), destination)
    assert not record_of(destination).exists()


def test_a_file_in_a_mirror_is_a_first_download_as_well(
    server: LocalServer, destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "thing.bin").write_bytes(BODY)
    monkeypatch.setenv("RELM_MIRROR", str(tmp_path / "mirror"))
    download("thing.bin", unpinned(server, at_most=400_000), destination)
    assert json.loads(record_of(destination).read_text())["source"] == str(tmp_path / "mirror" / "thing.bin")
    assert server.requests == []


def test_a_damaged_record_is_reported(server: LocalServer, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    record_of(destination).write_text('{"sha256": "abc"}')
    with pytest.raises(RelmError, match="size is missing; restore it from a copy, or delete it"):
        download("thing.bin", unpinned(server), destination)


def test_the_path_and_the_identity_depend_on_the_sources_while_nothing_pins_the_file(server: LocalServer) -> None:
    here = unpinned(server)
    there = here.model_copy(update={"sources": [Source(url=server.url("/other.bin"))]})
    assert here.key != there.key
    assert here.identity == f"first_download {here.key}"
    assert not here.is_pinned
    pinned = here.model_copy(update={"sha256": SHA256})
    assert (pinned.key, pinned.identity, pinned.is_pinned) == (SHA256[:12], SHA256, True)


def test_files_of_models_need_their_sha256(server: LocalServer) -> None:
    with pytest.raises(ValidationError, match="first_download is only for files of datasets and published tests"):
        PretrainedModel(title="t", licence="MIT", tokenizer="gpt2_bpe", files={"vocab.json": unpinned(server)})


def test_a_record_with_another_hash_than_it_was_written_with_is_refused(server: LocalServer, destination: Path) -> None:
    """Otherwise a second record of the same shape would vouch for whatever a source gives now."""
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", unpinned(server), destination)
    record = record_of(destination)
    record.write_text(record.read_text().replace(SHA256, hashlib.sha256(OTHER).hexdigest()))
    with pytest.raises(RelmError, match=r"first_download\.json: changed since it was made: .*restore it from a copy"):
        pin(unpinned(server), destination)


def test_a_deleted_record_is_written_again_from_the_file_that_is_there(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", unpinned(server), destination)
    record_of(destination).unlink()
    server.answers["/thing.bin"] = Served(OTHER)
    assert "already there" in download("thing.bin", unpinned(server), destination)
    assert json.loads(record_of(destination).read_text())["sha256"] == SHA256
    assert destination.read_bytes() == BODY


def test_a_changed_file_without_a_record_is_not_replaced(server: LocalServer, destination: Path) -> None:
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", unpinned(server), destination)
    record_of(destination).unlink()
    destination.write_bytes(OTHER)
    with pytest.raises(RelmError, match=r"was deleted, and its sidecar does not match .* delete the file to record"):
        download("thing.bin", unpinned(server), destination)
    assert destination.read_bytes() == OTHER
