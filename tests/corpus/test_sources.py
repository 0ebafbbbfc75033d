"""Locations of files: package indexes, the npm registry and the Hugging Face hub, each served by a real local server."""

import base64
import functools
import gzip
import hashlib
from pathlib import Path

import pytest
import requests
from local_server import BODY, LocalServer, Served, fault, from_server, in_turn, redirect, remote_file, running_server, status
from small_archives import tar_of, zip_of

from relm.corpus.download import sources
from relm.corpus.download.fetch import download
from relm.recipes.files.remote_files import RemoteFile, Source

pytestmark = pytest.mark.usefixtures("plain_surroundings")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- the Python package index ----------------------------------------------------------------------------------------------

WHEEL_NAME, SDIST_NAME = "my_set-1.0+a-py3-none-any.whl", "my_set-1.0.tar.gz"


@functools.cache  # gzip and zip write the time: made twice, it could be two files
def wheel() -> bytes:
    return zip_of({"my_set/data/thing.bin": BODY})


@functools.cache
def sdist() -> bytes:
    return tar_of({"my_set-1.0/data/thing.gz": gzip.compress(BODY)})


def in_wheel(**more: str) -> RemoteFile:
    return remote_file(BODY, Source(pypi="My.Set==1.0", file=WHEEL_NAME, member="my_set/data/thing.bin", **more))


def html_page(link: str) -> Served:
    page = f"""<!DOCTYPE html><html><body><h1>Links for My.Set</h1>
    <a href="../../files/my_set-0.9-py3-none-any.whl#sha256={"1" * 64}">my_set-0.9-py3-none-any.whl</a><br/>
    <a data-requires-python="&gt;=3.9" href="{link}">a name</a></body></html>"""
    return Served(page.encode(), headers={"Content-Type": "text/html"})


@pytest.fixture
def index(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> LocalServer:
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple/"))
    server.answers["/files/my_set-1.0%2Ba-py3-none-any.whl"] = Served(wheel())
    server.answers["/simple/my-set/"] = html_page(f"../../files/my_set-1.0%2Ba-py3-none-any.whl#sha256={sha256(wheel())}")
    return server


def test_a_wheel_is_found_on_an_html_page(index: LocalServer, destination: Path) -> None:
    assert "of My.Set==1.0 on the Python package index" in download("thing.bin", in_wheel(), destination)
    assert destination.read_bytes() == BODY


def test_a_compressed_member_of_an_sdist_arrives(index: LocalServer, destination: Path) -> None:
    index.answers |= {"/simple/my-set/": html_page(f"/files/{SDIST_NAME}"), f"/files/{SDIST_NAME}": Served(sdist())}
    source = Source(pypi="my_set==1.0", file=SDIST_NAME, member="my_set-1.0/data/thing.gz", decompress="gzip")
    download("thing.bin", remote_file(BODY, source), destination)
    assert destination.read_bytes() == BODY


@pytest.mark.parametrize(
    ("project", "message"),
    [("my-set==1.0", f"lacks {SDIST_NAME}; of 1.0 it has: {WHEEL_NAME}"), ("other==1.0", "/simple/other/: HTTP 404")],
)
def test_what_the_index_lacks_is_named(index: LocalServer, destination: Path, project: str, message: str) -> None:
    assert message in fault(remote_file(BODY, Source(pypi=project, file=SDIST_NAME, member="x")), destination)


def test_an_index_that_fails_once_is_requested_again(index: LocalServer, destination: Path) -> None:
    index.answers["/simple/my-set/"] = in_turn(status(502), index.answers["/simple/my-set/"])
    download("thing.bin", in_wheel(), destination)
    assert destination.read_bytes() == BODY


def test_an_index_may_not_lead_to_a_local_file(index: LocalServer, destination: Path) -> None:
    index.answers["/simple/my-set/"] = html_page(f"file:///etc/{WHEEL_NAME}")
    assert f"expected an http or https address, found file:///etc/{WHEEL_NAME}" in fault(in_wheel(), destination)


def test_the_password_of_an_index_goes_to_its_own_host_only(
    index: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url("/simple").replace("//", "//me:secret@"))
    login = "Basic " + base64.b64encode(b"me:secret").decode()
    download("thing.bin", in_wheel(), destination)
    assert [request.headers.get("authorization") for request in index.requests] == [login, login]
    with running_server() as elsewhere:
        index.answers["/simple/my-set/"] = html_page(elsewhere.url("/" + WHEEL_NAME))
        message = fault(in_wheel(), destination.with_name("second.bin"))
        assert "authorization" not in elsewhere.requests[0].headers
    assert "secret" not in message


def test_the_index_is_the_one_of_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources.find_package_index() == "https://pypi.org/simple"
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://file.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert sources.find_package_index() == "http://file.example"
    monkeypatch.setenv("PIP_INDEX_URL", "http://variable.example")
    assert sources.find_package_index() == "http://variable.example"


# --- the npm registry ------------------------------------------------------------------------------------------------------


@functools.cache
def tarball() -> bytes:
    return tar_of({"package/thing.bin": BODY})


def in_package(name: str = "set@1.0.0", **more: str) -> RemoteFile:
    return remote_file(BODY, Source(npm=name, member="package/thing.bin", **more))


@pytest.fixture
def registry(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> LocalServer:
    monkeypatch.setenv("npm_config_registry", server.url("/npm/"))
    server.answers |= dict.fromkeys(["/npm/set/-/set-1.0.0.tgz", "/npm/@owner/set/-/set-1.0.0.tgz"], Served(tarball()))
    return server


@pytest.mark.parametrize("name", ["set@1.0.0", "@owner/set@1.0.0"])
def test_a_member_of_an_npm_package_arrives(registry: LocalServer, destination: Path, name: str) -> None:
    assert f"{name} on the npm registry" in download("thing.bin", in_package(name), destination)
    assert destination.read_bytes() == BODY


def test_a_package_that_is_not_the_one_of_the_recipe_is_refused(registry: LocalServer, destination: Path) -> None:
    message = fault(in_package(sha256="4" * 64), destination)
    assert f"the received bytes have sha256 {sha256(tarball())}, the recipe expects {'4' * 64}" in message
    assert "correct it and the size below files.thing.bin in its recipe\n" in message


def test_a_version_that_npm_lacks_is_reported(registry: LocalServer, destination: Path) -> None:
    assert "set@2.0.0 on the npm registry: HTTP 404" in fault(in_package("set@2.0.0"), destination)


def test_the_registry_is_the_one_of_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources.find_npm_registry() == "https://registry.npmjs.org"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".npmrc").write_text("; mine\nfund=false\nregistry = http://user.example/npm/\n")
    assert sources.find_npm_registry() == "http://user.example/npm/"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://variable.example")
    assert sources.find_npm_registry() == "http://variable.example"


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
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert "authorization" not in storage.requests[0].headers
    printed = capfd.readouterr()
    assert TOKEN not in sentence + printed.out + printed.err + destination.with_name("thing.bin.json").read_text()


def test_another_source_never_gets_the_token(server: LocalServer, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.answers["/thing.bin"] = Served(BODY)
    download("thing.bin", from_server(server), destination)
    assert "authorization" not in server.requests[0].headers


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


def test_the_hubs_addresses_are_its_clients_own() -> None:
    with requests.Session() as session:
        model = Source(huggingface="gpt2", revision="refs/pr/1", file="onnx/model 1.bin")
        assert (
            sources.locate_source(model, session).url == "https://huggingface.co/gpt2/resolve/refs%2Fpr%2F1/onnx/model%201.bin"
        )
        dataset = Source(huggingface="a/b", repository_type="dataset", revision="c", file="d")
        assert sources.locate_source(dataset, session).url == "https://huggingface.co/datasets/a/b/resolve/c/d"
