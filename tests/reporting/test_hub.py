"""A published run is sent to the hub whole and checked, and only if that is confirmed; the hub here is a server of our own."""

import base64
import hashlib
import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from relm.cli import main
from relm.errors import RelmError
from relm.reporting.hub import prepare_files, publish_to_hub
from small_servers import QuietHandler, running

SECRET = "hf_" + "a" * 34


class Hub(QuietHandler):
    """The endpoints that `HfApi.create_repo` and `create_commit` call, with weights through LFS."""

    def do_POST(self) -> None:
        hub: Any = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub.calls.append((self.path, self.headers.get("Authorization")))
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.path == "/api/repos/create":
            hub.created = json.loads(body)
            return self.answer({"url": f"{hub.address}/owner/tiny"})
        if self.path.endswith("/preupload/main"):
            paths = [each["path"] for each in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            return self.answer({"files": files})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            upload = [each | {"actions": {"upload": {"href": f"{hub.address}/lfs/{each['oid']}"}}} for each in objects]
            return self.answer({"transfer": "basic", "objects": upload})
        if self.path == "/api/validate-yaml":  # of the card
            return self.answer({"errors": [], "warnings": []})
        hub.commits.append([json.loads(line) for line in body.splitlines()])
        return self.answer({"commitUrl": f"{hub.address}/owner/tiny/commit/1", "commitOid": "1", "pullRequestUrl": None})

    def do_PUT(self) -> None:
        hub: Any = self.server
        hub.weights[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.respond(200)

    def answer(self, content: Any, status: int = 200) -> None:
        self.respond(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running hub, to which HF_ENDPOINT points, and a token for it."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.calls, server.commits, server.weights, server.created = [], [], {}, None
    server.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # else weights go by another protocol
    with running(server):
        yield server


def test_without_confirmation_files_are_listed_and_nothing_is_sent(
    hub: Any, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "tiny", "--hub", "owner/tiny"]) == 0
    text = capsys.readouterr().out
    assert "would upload 18 files" in text
    assert "model.safetensors" in text
    assert "nothing was sent; --yes sends them" in text
    assert hub.calls == []


def test_confirmed_every_file_arrives_in_one_commit(hub: Any, published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "tiny", "--hub", "owner/tiny", "--yes"]) == 0
    output = capsys.readouterr()
    assert f"to {hub.address}/owner/tiny/commit/1" in output.out
    assert SECRET not in output.out + output.err
    assert hub.created["visibility"] == "private"
    ((_, *operations),) = hub.commits
    sent = {each["value"]["path"]: each["value"] for each in operations}
    assert set(sent) == {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    contents = {name: base64.b64decode(value["content"]) for name, value in sent.items() if "content" in value}
    weights = (published / "model.safetensors").read_bytes()
    assert list(hub.weights.values()) == [weights]
    assert sent["model.safetensors"]["oid"] == hashlib.sha256(weights).hexdigest()
    entities = {entity["@id"]: entity for entity in json.loads(contents.pop("ro-crate-metadata.json"))["@graph"]}
    listed = dict(reversed(line.split("  ")) for line in contents.pop("SHA256SUMS").decode().splitlines())
    assert listed.keys() == sent.keys() - {"SHA256SUMS"}
    for name, content in contents.items():
        assert listed[name] == hashlib.sha256(content).hexdigest()
        assert entities[name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert name == "README.md" or content == (published / name).read_bytes()
    assert b'model="owner/tiny"' in contents["README.md"]


def test_a_damaged_file_is_named_before_anything_is_sent(hub: Any, published: Path) -> None:
    with open(published / "config.json", "a") as file:
        file.write("x")
    with pytest.raises(RelmError, match=r"nothing was sent. results/tiny: DAMAGED(.|\n)*config.json: damaged: sha256 is"):
        publish_to_hub(published, "owner/tiny", confirmed=True)
    (published / "config.json").unlink()
    with pytest.raises(RelmError, match=r"config.json: missing: was published"):
        publish_to_hub(published, "owner/tiny", confirmed=True)
    assert hub.calls == []


@pytest.mark.parametrize("content", ["[]", '{"@graph": [1]}', '{"@graph": 1}', "", '{"@graph": [{"@type": "File"}]}'])
def test_a_damaged_crate_is_a_sentence(hub: Any, published: Path, content: str) -> None:
    (published / "ro-crate-metadata.json").write_text(content)
    with pytest.raises(RelmError, match=r"ro-crate-metadata.json: damaged: not"):
        publish_to_hub(published, "owner/tiny", confirmed=True)
    assert hub.calls == []


def test_a_refused_token_is_an_error_that_does_not_show_it(hub: Any, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "b" * 34)
    with pytest.raises(RelmError, match=r"owner/tiny: cannot be uploaded \(.*401") as error:
        publish_to_hub(published, "owner/tiny", confirmed=True)
    assert "bbbb" not in str(error.value)


def test_without_a_token_the_error_says_where_it_belongs(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(RelmError, match="HF_TOKEN is not set"):
        publish_to_hub(published, "owner/tiny", confirmed=True)


def test_what_is_no_repository_or_no_result_is_named(in_project: Path) -> None:
    with pytest.raises(RelmError, match="--hub tiny: expected OWNER/NAME"):
        publish_to_hub(in_project, "tiny", confirmed=False)
    with pytest.raises(RelmError, match="is no published run"):
        publish_to_hub(in_project, "owner/tiny", confirmed=False)


def test_a_crate_cannot_name_a_file_outside_its_folder(published: Path) -> None:
    crate = json.loads((published / "ro-crate-metadata.json").read_text())
    (card,) = (entity for entity in crate["@graph"] if entity.get("name") == "README.md" and entity["@type"] == "File")
    crate["@graph"].append(card | {"@id": "../secret"})
    (published / "SHA256SUMS").unlink()  # as an earlier version published
    (published / "ro-crate-metadata.json").unlink()
    (published / "ro-crate-metadata.json").write_text(json.dumps(crate))
    with pytest.raises(RelmError, match=r"names \.\./secret"):
        prepare_files(published, "owner/tiny")


def test_a_confirmation_without_a_repository_is_refused(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "tiny", "--yes"]) == 1
    assert "give --hub OWNER/NAME" in capsys.readouterr().err
