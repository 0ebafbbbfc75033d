"""A registry's digest of a tag: requested with a token where it wants one, believed where it answers as a registry does."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from local_registry import MANIFEST, Answer, digest_of, docker_registry, free_port, push_image, push_index, server

from relm.containers.registry import (
    ImageRegistry,
    OutOfReach,
    Repository,
    format_commands,
    is_loopback,
    parse_challenge,
    parse_repository,
)
from relm.errors import RelmError

ID = "sha256:" + "1" * 64


# --- names and headers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "host", "name", "address"),
    [
        ("python", "docker.io", "library/python", "https://registry-1.docker.io/v2/library/python/manifests"),
        ("relm/cpu", "docker.io", "relm/cpu", "https://registry-1.docker.io/v2/relm/cpu/manifests"),
        ("docker.io/python", "docker.io", "library/python", "https://registry-1.docker.io/v2/library/python/manifests"),
        ("ghcr.io/a/b/c", "ghcr.io", "a/b/c", "https://ghcr.io/v2/a/b/c/manifests"),
        ("localhost/a", "localhost", "a", "http://localhost/v2/a/manifests"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000", "a", "http://127.0.0.1:5000/v2/a/manifests"),
        ("example.org:5000/a", "example.org:5000", "a", "https://example.org:5000/v2/a/manifests"),
    ],
)
def test_a_name_is_read_as_docker_reads_it(image: str, host: str, name: str, address: str) -> None:
    assert parse_repository(image) == Repository(host, name)
    assert parse_repository(image).address == address


@pytest.mark.parametrize("image", ["Python", "python:3.11", f"python@{ID}", "a//b", "", "host.org/", "../x", "a b", "x?y"])
def test_what_is_no_name_is_refused(image: str) -> None:
    with pytest.raises(RelmError, match="expected a name like"):
        parse_repository(image)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1:80", True),
        ("127.9.9.9", True),
        ("localhost.example.org", False),
        ("10.0.0.1:5000", False),
    ],
)
def test_only_this_machine_is_reached_without_tls(host: str, here: bool) -> None:
    assert is_loopback(host) is here


@pytest.mark.parametrize(
    ("header", "scheme", "parameters"),
    [
        (
            'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/python:pull"',
            "bearer",
            {
                "realm": "https://auth.docker.io/token",
                "service": "registry.docker.io",
                "scope": "repository:library/python:pull",
            },
        ),
        ('Bearer realm="r", scope="a:b:pull,push"', "bearer", {"realm": "r", "scope": "a:b:pull,push"}),
        ("bearer REALM=r", "bearer", {"realm": "r"}),
        ('Basic realm="a \\"quoted\\" one"', "basic", {"realm": 'a "quoted" one'}),
        ("", "", {}),
    ],
)
def test_a_challenge_is_parsed(header: str, scheme: str, parameters: dict[str, str]) -> None:
    assert parse_challenge(header) == (scheme, parameters)


def test_the_commands_for_another_machine_name_the_tag() -> None:
    assert format_commands("docker.io/library/python", "3.11") == [
        "skopeo inspect --format '{{.Digest}}' docker://docker.io/library/python:3.11",
        "docker buildx imagetools inspect docker.io/library/python:3.11 --format '{{.Manifest.Digest}}'",
    ]


# --- a real registry ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def test_a_tag_is_confirmed_moved_or_absent_as_the_registry_has_it(host: str) -> None:
    first = push_image(host, "moving", "latest", "the first")
    assert ImageRegistry(f"{host}/moving").compare("latest", first).locked == "same"
    assert ImageRegistry(f"{host}/moving").compare("latest", None).tag_digest == first
    second = push_image(host, "moving", "latest", "the second")
    moved = ImageRegistry(f"{host}/moving").compare("latest", first)
    assert (moved.tag_digest, moved.locked, moved.confirms) == (second, "moved", False)
    absent = ImageRegistry(f"{host}/moving").compare("latest", ID)
    assert (absent.tag_digest, absent.locked, absent.confirms) == (second, "absent", False)


def test_one_platforms_image_of_an_index_is_confirmed_and_named(host: str) -> None:
    image = push_image(host, "several", "amd64", "of one platform")
    index = push_index(host, "several", "all", image)
    assert ImageRegistry(f"{host}/several").compare("all", index).locked == "same"
    found = ImageRegistry(f"{host}/several").compare("all", image)
    assert (found.tag_digest, found.locked, found.platform, found.confirms) == (index, "platform", "linux/amd64", True)


def test_an_absent_tag_or_repository_is_named(host: str) -> None:
    push_image(host, "there", "1", "x")
    for image, tag in (("there", "2"), ("not/there", "1")):
        with pytest.raises(RelmError, match=f"{host} has no image {host}/{image}:{tag}; correct"):
            ImageRegistry(f"{host}/{image}").compare(tag, None)


# --- servers that behave otherwise -------------------------------------------------------------------------------------------

BODY = b'{"schemaVersion": 2}'
GOOD = {"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(BODY)}


def test_a_token_is_fetched_for_what_the_registry_asks_and_sent_to_it_alone() -> None:
    requests = []

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer:
        requests.append((path, headers.get("authorization")))
        if path.startswith("/token"):
            return 200, {"Content-Type": "application/json"}, json.dumps({"token": "opaque"}).encode()
        if headers.get("authorization") == "Bearer opaque":
            return 200, GOOD, BODY
        realm = f'Bearer realm="http://{headers["host"]}/token",service="me, myself",scope="repository:a/b:pull"'
        return 401, {"WWW-Authenticate": realm}, b""

    with server(answer) as host:
        assert ImageRegistry(f"{host}/a/b").compare("1", digest_of(BODY)).locked == "same"
    tokens = [(path, sent) for path, sent in requests if path.startswith("/token")]
    assert parse_qs(urlsplit(tokens[0][0]).query) == {"service": ["me, myself"], "scope": ["repository:a/b:pull"]}
    assert [sent for _, sent in tokens] == [None]


def test_a_token_wins_over_a_login_that_netrc_has_for_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password word\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer:
        if path.startswith("/token"):
            known = headers.get("authorization", "").startswith("Basic ")
            return (200, {}, b'{"access_token": "mine"}') if known else (401, {}, b"")
        if headers.get("authorization") == "Bearer mine":
            return 200, GOOD, BODY
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{headers["host"]}/token"'}, b""

    with server(answer) as host:
        assert ImageRegistry(f"{host}/a").compare("1", digest_of(BODY)).locked == "same"


def test_without_a_digest_in_the_header_the_manifests_own_hash_counts() -> None:
    with server(lambda *_: (200, {"Content-Type": MANIFEST}, BODY)) as host:
        assert ImageRegistry(f"{host}/a").compare("1", None).tag_digest == digest_of(BODY)


def refused(status: int, headers: dict[str, str], body: bytes = b"") -> str:
    """Return the message about a server that always answers this."""
    with server(lambda *_: (status, headers, body)) as host, pytest.raises(RelmError) as caught:
        ImageRegistry(f"{host}/a").compare("1", None)
    return str(caught.value)


def test_a_server_that_is_no_registry_is_named() -> None:
    assert "text/html; expected a manifest" in refused(200, {"Content-Type": "text/html"}, b"<html>")
    assert "gives the digest 'sha256:abc'" in refused(200, {**GOOD, "Docker-Content-Digest": "sha256:abc"})
    assert "the manifest has 0 bytes" in refused(200, {"Content-Type": MANIFEST})
    assert "wants a login of the kind 'basic'" in refused(401, {"WWW-Authenticate": 'Basic realm="x"'})
    assert "wants a login of the kind 'unknown'" in refused(401, {})
    assert "that it shows to everybody" in refused(403, {})


def test_an_index_with_other_bytes_than_its_digest_is_refused() -> None:
    headers = {"Content-Type": "application/vnd.oci.image.index.v1+json", "Docker-Content-Digest": ID}
    with (
        server(lambda *_: (200, headers, b'{"manifests": []}')) as host,
        pytest.raises(RelmError, match="with other bytes than its digest's"),
    ):
        ImageRegistry(f"{host}/a").compare("1", digest_of(BODY))


def test_a_realm_that_gives_no_token_is_named() -> None:
    def answer(method: str, path: str, headers: dict[str, str]) -> Answer:
        if path.startswith("/token"):
            return 200, {}, b"[]"
        return 401, {"WWW-Authenticate": f'Bearer realm="http://me:word@{headers["host"]}/token"'}, b""

    with server(answer) as host, pytest.raises(RelmError, match=f"^http://{host}/token: there is no token") as caught:
        ImageRegistry(f"{host}/a").compare("1", None)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_registry_is_out_of_reach(status: int) -> None:
    with server(lambda *_: (status, {}, b"")) as host, pytest.raises(OutOfReach, match=f"HTTP {status}"):
        ImageRegistry(f"{host}/a").compare("1", None)


def test_nobody_there_is_out_of_reach() -> None:
    with pytest.raises(OutOfReach, match="the connection failed"):
        ImageRegistry(f"127.0.0.1:{free_port()}/a").compare("1", None)
