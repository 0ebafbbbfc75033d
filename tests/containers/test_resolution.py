"""`relm images resolve` confirms the lock's digests at their registry, notes it in the lock, and leaves its comments alone."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_registry import docker_registry, free_port, push_image

from relm.containers.lock import read_lock
from relm.containers.resolution import resolve, set_values
from relm.errors import RelmError

ID = "sha256:" + "1" * 64
TODAY = datetime.date(2030, 1, 2)
LOCK = """# On top.
images:
  cpu:
    image: relm/cpu
    tag: "1"
    bases: {{BASE: python}}
bases:
  python:              # the base
    image: {host}/python
    tag: "3.11"
    digest: {digest}   # from afar
    source: https://example.org/list
    verified: false
    checked: 2026-01-01
  other:
    image: {host}/other
    tag: "1"
# The end.
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def checkout_with(folder: Path, host: str, digest: str) -> Path:
    (folder / "containers").mkdir()
    path = folder / "containers" / "lock.yaml"
    path.write_text(LOCK.format(host=host, digest=digest))
    return path


def test_a_confirmed_digest_is_noted_with_the_day_and_every_comment_stays(host: str, tmp_path: Path) -> None:
    digest = push_image(host, "python", "3.11", "it")
    path = checkout_with(tmp_path, host, digest)
    before = path.read_text()
    answer = resolve("bases.python", write=False, update=False, folder=tmp_path)
    assert answer.endswith("as the lock has it: verified (--write notes it there)")
    assert path.read_text() == before
    resolve("bases.python", write=True, update=False, folder=tmp_path, today=TODAY)
    assert path.read_text() == before.replace("verified: false", "verified: true").replace("2026-01-01", "2030-01-02")
    assert read_lock(tmp_path).bases["python"].verified


def test_another_digest_is_refused_and_taken_only_with_update(host: str, tmp_path: Path) -> None:
    digest = push_image(host, "python", "3.11", "it")
    path = checkout_with(tmp_path, host, ID)
    before = path.read_text()
    with pytest.raises(RelmError, match=rf"is {digest} and the registry does not have the lock's {ID}: not verified"):
        resolve("bases.python", write=True, update=False, folder=tmp_path)
    assert path.read_text() == before
    assert "change the Dockerfiles that name" in resolve("bases.python", write=False, update=True, folder=tmp_path, today=TODAY)
    found = read_lock(tmp_path).bases["python"]
    assert (found.digest, found.verified, found.checked) == (digest, True, TODAY)
    assert found.source == f"the registry, {host}"
    assert f"digest: {digest}   # from afar\n" in path.read_text()


def test_a_tag_that_moved_is_distinguished_from_a_digest_that_never_was(host: str, tmp_path: Path) -> None:
    old = push_image(host, "python", "3.11", "old")
    push_image(host, "python", "3.11", "new")
    checkout_with(tmp_path, host, old)
    with pytest.raises(RelmError, match=rf"has the lock's {old} as well, but the tag no longer names it: not verified"):
        resolve("bases.python", write=True, update=False, folder=tmp_path)


def test_an_entry_without_a_digest_gets_one(host: str, tmp_path: Path) -> None:
    digest = push_image(host, "other", "1", "other")
    path = checkout_with(tmp_path, host, ID)
    with pytest.raises(RelmError, match="the lock has no digest: not verified; --update"):
        resolve("bases.other", write=True, update=False, folder=tmp_path)
    resolve("bases.other", write=False, update=True, folder=tmp_path, today=TODAY)
    assert read_lock(tmp_path).bases["other"].digest == digest
    assert path.read_text().endswith("    checked: 2030-01-02\n# The end.\n")


def test_a_role_means_its_image_and_its_bases_and_one_fault_hides_no_other(host: str, tmp_path: Path) -> None:
    push_image(host, "python", "3.11", "it")
    checkout_with(tmp_path, host, ID)
    with pytest.raises(RelmError) as caught:
        resolve("cpu", write=True, update=False, folder=tmp_path)
    keys = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert keys == ["images.cpu", "bases.python"]
    assert "was never published" in str(caught.value)
    with pytest.raises(RelmError, match=r"\nbases.python: .*\nbases.other: "):
        resolve(None, write=False, update=False, folder=tmp_path)


def test_out_of_reach_the_commands_for_another_machine_are_printed(tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    checkout_with(tmp_path, host, ID)
    with pytest.raises(RelmError, match=rf"asks it:\n  skopeo inspect .* docker://{host}/python:3.11\n  docker buildx"):
        resolve("bases.python", write=True, update=False, folder=tmp_path)


def test_an_unknown_entry_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    checkout_with(tmp_path, "127.0.0.1:1", ID)
    with pytest.raises(RelmError, match=r"has no entry 'pyhton'; it has cpu, images.cpu, bases.python"):
        resolve("pyhton", write=False, update=False, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a:\n  b:\n    c: 1  # why\n", "a:\n  b:\n    c: 2  # why\n    d: 3\n"),
        ("a:\n  b:\n    c: 1", "a:\n  b:\n    c: 2\n    d: 3"),
        ("a:\n  b: # x\n    d: 'q'\n    c: \"1\"\n  e: 5\n", "a:\n  b: # x\n    d: 3\n    c: 2\n  e: 5\n"),
        (
            "a:\n  b:\n    c: 1\n    list:\n      - 1\n      - 2\nz: 1\n",
            "a:\n  b:\n    c: 2\n    list:\n      - 1\n      - 2\n    d: 3\nz: 1\n",
        ),
    ],
)
def test_values_are_set_in_the_text_and_nothing_else_is_touched(text: str, result: str) -> None:
    assert set_values(text, ["a", "b"], {"c": "2", "d": "3"}) == result
