"""`relm images resolve` compares the lock's digests with their registries."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from local_registry import docker_registry, push_image, push_index

from relm.containers.resolution import read_manifest, resolve
from relm.errors import RelmError

ID = "sha256:" + "1" * 64
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


# It answers from a folder: REFERENCE, with - for /, has what skopeo prints, or prints on stderr.
SKOPEO = """#!/bin/sh
shift 2
test "$1" = --tls-verify=false && shift
name=$(echo "${{1#docker://}}" | tr / -)
if test -f "{folder}/$name"; then cat "{folder}/$name"
elif test -f "{folder}/fault"; then cat "{folder}/fault" >&2; exit 1
else echo 'time="T" level=fatal msg="reading manifest: manifest unknown"' >&2; exit 1; fi
"""


class Registry:
    """The images that skopeo finds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, "127.0.0.1:5000"

    def push(self, name: str, tag: str, content: bytes) -> str:
        """Have a tag and its digest name a manifest, and return the digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        for reference in (f":{tag}", f"@{digest}"):
            (self.folder / f"{self.host}-{name}{reference}").write_bytes(content)
        return digest


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    for name in ("programs", "registry"):
        (tmp_path / name).mkdir()
    program = tmp_path / "programs/skopeo"
    program.write_text(SKOPEO.format(folder=tmp_path / "registry"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return Registry(tmp_path / "registry")


def checkout_with(folder: Path, host: str, digest: str) -> Path:
    (folder / "containers").mkdir()
    path = folder / "containers" / "lock.yaml"
    path.write_text(LOCK.format(host=host, digest=digest))
    return path


def test_a_confirmed_digest_says_what_to_write_into_the_lock(registry: Registry, tmp_path: Path) -> None:
    path = checkout_with(tmp_path, registry.host, registry.push("python", "3.11", b"it"))
    assert "as in the lock; set `verified: true` and today's date as" in resolve("bases.python", folder=tmp_path)
    path.write_text(path.read_text().replace("verified: false", "verified: true"))
    assert resolve("bases.python", folder=tmp_path).endswith(", as in the lock")


@pytest.mark.parametrize(("name", "found"), [("python", ID), ("other", "no digest")])
def test_another_digest_is_refused(name: str, found: str, registry: Registry, tmp_path: Path) -> None:
    digest = registry.push(name, "3.11" if name == "python" else "1", b"it")
    checkout_with(tmp_path, registry.host, ID)
    with pytest.raises(RelmError, match=rf" is {digest}, but the lock has {found}: not verified. If you want that image"):
        resolve(f"bases.{name}", folder=tmp_path)


def test_a_role_means_its_image_and_its_bases_and_one_fault_hides_no_other(registry: Registry, tmp_path: Path) -> None:
    registry.push("python", "3.11", b"it")
    checkout_with(tmp_path, registry.host, ID)
    with pytest.raises(RelmError) as caught:
        resolve("cpu", folder=tmp_path)
    keys = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert keys == ["images.cpu", "bases.python"]
    assert "was never published" in str(caught.value)
    with pytest.raises(RelmError, match=r"\nbases.python: .*\nbases.other: "):
        resolve(None, folder=tmp_path)


def test_one_platforms_image_of_a_tag_is_confirmed(registry: Registry, tmp_path: Path) -> None:
    entries = [{"digest": ID, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}}]
    registry.push("python", "3.11", json.dumps({"manifests": entries}).encode())
    checkout_with(tmp_path, registry.host, ID)
    answer = resolve("bases.python", folder=tmp_path)
    assert f"whose image for linux/arm64/v8 is {ID}, as in the lock" in answer


@pytest.mark.parametrize("content", [b"", b"[]", b'{"manifests": 5}', b'{"manifests": [5]}', b"\xff", b"[" * 100_000])
def test_a_manifest_of_another_shape_confirms_nothing(content: bytes, registry: Registry, tmp_path: Path) -> None:
    registry.push("python", "3.11", content)
    checkout_with(tmp_path, registry.host, ID)
    with pytest.raises(RelmError, match=f"but the lock has {ID}: not verified"):
        resolve("bases.python", folder=tmp_path)


def test_a_tag_that_is_not_there_is_named(registry: Registry, tmp_path: Path) -> None:
    checkout_with(tmp_path, registry.host, ID)
    with pytest.raises(RelmError, match=rf"{registry.host} has no image {registry.host}/python:3.11, or hides it from you"):
        resolve("bases.python", folder=tmp_path)


@pytest.mark.parametrize(
    ("fault", "says"),
    [('time="T" level=fatal msg="pinging: no such host"', "127.0.0.1:5000: pinging: no such host"), ("", "gave no reason")],
)
def test_a_registry_out_of_reach_is_named(fault: str, says: str, registry: Registry, tmp_path: Path) -> None:
    (registry.folder / "fault").write_text(fault)
    checkout_with(tmp_path, registry.host, ID)
    with pytest.raises(RelmError, match=rf"{says}; run this where the registry can be reached"):
        resolve("bases.python", folder=tmp_path)


def test_without_skopeo_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checkout_with(tmp_path, "example.org", ID)
    with pytest.raises(RelmError, match=r"skopeo is not installed; install it \(apt-get install skopeo\)"):
        resolve("bases.python", folder=tmp_path)


def test_the_real_skopeo_reads_a_real_registry(tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("there is no skopeo on this machine (apt-get install skopeo)")
    with docker_registry(tmp_path) as host:
        first = push_image(host, "python", "3.11", "first")
        index = push_index(host, "python", "all", first)
        checkout_with(tmp_path, host, first)
        assert f"python:3.11 is {first}, as in the lock" in resolve("bases.python", folder=tmp_path)
        assert hashlib.sha256(read_manifest(f"{host}/python:all")).hexdigest() == index.removeprefix("sha256:")
        with pytest.raises(RelmError, match="has no image"):
            read_manifest(f"{host}/python:absent")
    with pytest.raises(RelmError, match="connection refused"):
        read_manifest(f"{host}/python:3.11")


def test_an_unknown_entry_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    checkout_with(tmp_path, "127.0.0.1:1", ID)
    with pytest.raises(RelmError, match=r"unknown entry 'pyhton'; expected one of cpu, images.cpu, bases.python"):
        resolve("pyhton", folder=tmp_path)
