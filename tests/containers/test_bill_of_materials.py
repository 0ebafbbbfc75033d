"""Bills of materials: valid by CycloneDX's own schema, complete, and the same bytes each time."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from docker.errors import NotFound

from relm.containers import context as contexts
from relm.containers.bill_of_materials import describe_image, describe_lock, read_debian_packages, write_bill
from relm.containers.context import Context, lay_out, read_entries
from relm.containers.lock import find_image
from small_project import CHECKOUT

LOCKS = sorted((CHECKOUT / "envs").glob("*.txt"))
VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)
BASE = f"docker.io/library/python:3.11-slim-bookworm@sha256:{'a' * 64}"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Status: not a field

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1:2.0~rc1-1
"""


def find_component(bill: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [component for component in bill["components"] if component["name"] == name]
    return dict(found)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_the_bill_of_a_lock_is_valid_and_has_each_package_with_a_licence_and_the_lock_s_hashes(lock: Path) -> None:
    bill = describe_lock(lock)
    assert VALIDATOR.validate_str(json.dumps(bill)) is None
    assert len(bill["components"]) == len(read_entries(lock))
    assert sum(len(component["hashes"]) for component in bill["components"]) == lock.read_text().count("--hash=sha256:")
    assert [component["name"] for component in bill["components"] if not component.get("licenses")] == []


def test_the_schema_is_what_finds_a_fault() -> None:
    bill = describe_lock(CHECKOUT / "envs/loggers.txt")
    bill["components"][0]["type"] = "package"
    assert VALIDATOR.validate_str(json.dumps(bill)) is not None


def test_a_package_is_described_by_name_version_address_hashes_and_licence() -> None:
    lock = CHECKOUT / "envs/torch-cpu.txt"
    (torch,) = describe_lock(lock)["components"]
    assert torch["purl"] == torch["bom-ref"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert (torch["name"], torch["version"]) == ("torch", "2.13.0+cpu")
    assert torch["hashes"] == [{"alg": "SHA-256", "content": lock.read_text().split("--hash=sha256:")[1].strip()}]
    assert "Apache-2.0 WITH LLVM-exception" in torch["licenses"][0]["expression"]
    names = {component["name"] for component in describe_lock(CHECKOUT / "envs/torch-tpu.txt")["components"]}
    assert "torch-xla" in names  # a name of the lock that has extras


def test_the_command_writes_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        command = [sys.executable, "-m", "relm.containers.bill_of_materials", "--output", str(tmp_path / name)]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second"))
    assert set(first) == {f"{lock.stem}.cdx.json" for lock in LOCKS}
    assert first == second


@pytest.fixture
def laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Context]:
    """A function that lays out the context of a role on a base, with no wheels but one in place of relm's."""

    def build(checkout: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "relm-0.whl").write_text("the wheel")

    monkeypatch.setattr(contexts, "fetch_wheels", lambda lock, wanted: tmp_path)
    monkeypatch.setattr(contexts, "build_wheel", build)
    return lambda role, base: lay_out(role, tmp_path / "context", CHECKOUT, {"BASE": base})


@pytest.mark.parametrize("role", ["cpu", "tpu"])
def test_the_bill_of_an_image_has_its_base_debians_packages_relms_wheel_and_the_packages_that_it_keeps(
    role: str, laid_out: Callable[[str, str], Context], tmp_path: Path
) -> None:
    context = laid_out(role, BASE)
    identifier = f"sha256:{'b' * 64}"
    bill = describe_image(find_image(role, CHECKOUT), identifier, context, checkout=CHECKOUT, debian=STATUS)
    write_bill(bill, tmp_path / "bill.json")
    assert VALIDATOR.validate_str((tmp_path / "bill.json").read_text()) is None
    assert len({component["bom-ref"] for component in bill["components"]}) == len(bill["components"])
    subject = bill["metadata"]["component"]
    properties = {each["name"]: each["value"] for each in subject["properties"]}
    assert (subject["name"], properties["relm:id"], properties["relm:lock"]) == (
        f"relm/{role}",
        identifier,
        context.arguments["LOCK"],
    )
    base = find_component(bill, "docker.io/library/python")
    assert base["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert base["purl"].startswith("pkg:oci/python@sha256%3Aaaa")
    wheel = hashlib.sha256(b"the wheel").hexdigest()
    assert find_component(bill, "relm")["hashes"] == [{"alg": "SHA-256", "content": wheel}]
    assert find_component(bill, "libc6")["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"
    names = {component["name"] for component in bill["components"]}
    assert {"torch", "transformers"} < names
    assert not names & {"removed", "snakemake", "wandb"}


def test_a_base_that_is_a_name_alone_has_no_digest(laid_out: Callable[[str, str], Context]) -> None:
    context = laid_out("cpu", "localhost:5000/mine")
    bill = describe_image(find_image("cpu", CHECKOUT), f"sha256:{'b' * 64}", context, checkout=CHECKOUT, debian=None)
    assert VALIDATOR.validate_str(json.dumps(bill)) is None
    base = find_component(bill, "localhost:5000/mine")
    assert base == {"type": "container", "bom-ref": "localhost:5000/mine", "name": "localhost:5000/mine"}
    assert not any(component.get("purl", "").startswith("pkg:deb") for component in bill["components"])


class OneContainer:
    """A client whose containers are never started, with or without dpkg's list."""

    def __init__(self, content: bytes | None) -> None:
        self.content, self.removed = content, False
        self.containers = SimpleNamespace(create=lambda image: self)

    def get_archive(self, path: str) -> tuple[list[bytes], dict[str, Any]]:
        if self.content is None:
            raise NotFound("no such file")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo("status")
            entry.size = len(self.content)
            archive.addfile(entry, io.BytesIO(self.content))
        data = packed.getvalue()
        return [data[:700], data[700:]], {}

    def remove(self, force: bool) -> None:
        self.removed = True


@pytest.mark.parametrize("content", [STATUS, None])
def test_debians_packages_are_read_from_the_image_and_nothing_is_left_of_that(content: str | None) -> None:
    client = OneContainer(None if content is None else content.encode())
    assert read_debian_packages(client, "image") == content
    assert client.removed
