"""A step's record names its image and its packages, or the absence of a container."""

import hashlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from relm.provenance import surroundings
from relm.provenance.container import container, format_container, packages
from relm.recipes.checkout import read_commit
from relm.recipes.redaction import mask_value, shorten_path

ID = "sha256:" + "5" * 64
PUBLISHED = f"docker.io/relm/cpu:0.1.0@{ID}"


def at(root: Path, mark: str) -> Path:
    """Return a root folder with the sign that an engine leaves."""
    (root / mark).parent.mkdir(parents=True, exist_ok=True)
    (root / mark).touch()
    return root


def facts(engine: str, role: str | None = None, image: str | None = None, digest: str | None = None) -> dict[str, str | None]:
    return {"engine": engine, "role": role, "image": image, "digest": digest}


# The sign of an engine below the root, variables, the record, and its sentence.
UNKNOWN = "in a container (relm's for tpu) by an unknown engine, image unknown"
APPTAINER = "in a container by Apptainer, image unknown"
ROLE = {"RELM_IMAGE": PUBLISHED, "RELM_IMAGE_ROLE": "cpu"}
SIGNS: dict[str, tuple[str | None, dict[str, str], dict[str, str | None] | None, str]] = {
    "none": (None, {"HOME": "/root"}, None, "outside any container"),
    "docker": (".dockerenv", ROLE, facts("docker", "cpu", PUBLISHED, ID), PUBLISHED),
    "podman": ("run/.containerenv", ROLE, facts("podman", "cpu", PUBLISHED, ID), PUBLISHED),
    "podman, read-only root": (None, {"container": "podman", "RELM_IMAGE": ID}, facts("podman", None, ID, ID), ID),
    "systemd-nspawn": (None, {"container": "systemd-nspawn"}, None, "outside any container"),
    "apptainer": (None, {"APPTAINER_CONTAINER": "/images/x.sif"}, facts("apptainer"), APPTAINER),
    "singularity": (None, {"SINGULARITY_CONTAINER": "/images/x.sif"}, facts("apptainer"), APPTAINER),
    "built here": (".dockerenv", {"RELM_IMAGE": ID}, facts("docker", None, ID, ID), f"in the image {ID} by Docker"),
    "a tag": (".dockerenv", {"RELM_IMAGE": "relm/cpu:0.1.0"}, facts("docker", None, "relm/cpu:0.1.0"), ", digest unknown"),
    "a short digest": (".dockerenv", {"RELM_IMAGE": "a@sha256:abc"}, facts("docker", None, "a@sha256:abc"), ", digest unknown"),
    "a long digest": (".dockerenv", {"RELM_IMAGE": f"{ID}0"}, facts("docker", None, f"{ID}0"), ", digest unknown"),
    "no sign": (None, {"RELM_IMAGE_ROLE": "tpu"}, facts("unknown", "tpu"), UNKNOWN),
}


@pytest.mark.parametrize(("mark", "variables", "expected", "words"), SIGNS.values(), ids=SIGNS)
def test_an_engine_is_known_by_its_file_or_variable(
    tmp_path: Path, mark: str | None, variables: dict[str, str], expected: dict[str, str | None] | None, words: str
) -> None:
    """Read the engine, the image and its digest from what an engine leaves and the run line says."""
    found = container(variables, at(tmp_path, mark) if mark else tmp_path)
    assert found == expected
    assert words in format_container(found)


def test_what_apptainer_runs_is_named_by_the_image_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are Snakemake's for pulled images, and the override's for images built here."""
    from snakemake.deployment.singularity import Image as SnakemakesImage

    lock = {"image": "docker.io/relm/cpu", "tag": "0.1.0", "digest": ID, "source": "s", "checked": "2026-01-01"}
    base = {"image": "docker.io/library/python", "tag": "3.11"}
    built = {"id": "sha256:" + "6" * 64, "bases": {}, "built": "2026-01-01", "apptainer": "work/tpu.sif"}
    (tmp_path / "containers").mkdir()
    document = {"images": {"cpu": {**lock, "bases": {"BASE": "python"}}}, "bases": {"python": base}}
    (tmp_path / "containers/lock.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "containers/lock.local.yaml").write_text(yaml.safe_dump({"images": {"tpu": built}}))
    monkeypatch.chdir(tmp_path)
    pulled = SnakemakesImage.__new__(SnakemakesImage)
    pulled.url = f"docker://{PUBLISHED}"
    images = [
        container({"APPTAINER_CONTAINER": path}, tmp_path)
        for path in (f"/x/.snakemake/singularity/{pulled.hash}.simg", f"{tmp_path}/work/tpu.sif", "/x/other.simg")
    ]
    assert [found and found["image"] for found in images] == [PUBLISHED, built["id"], None]


def test_every_installed_package_is_listed_with_a_hash_that_anybody_can_check() -> None:
    listed = packages()
    assert listed["installed"] == sorted(listed["installed"], key=lambda line: line.split("==")[0])
    assert f"numpy=={importlib.metadata.version('numpy')}" in listed["installed"]
    assert f"relm=={importlib.metadata.version('relm')}" in listed["installed"]
    assert listed["sha256"] == hashlib.sha256(("\n".join(listed["installed"]) + "\n").encode()).hexdigest()


def test_of_a_package_that_is_there_twice_the_imported_one_is_listed(tmp_path: Path) -> None:
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        metadata = tmp_path / folder / f"Some_Thing-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Some.Thing\nVersion: {version}\n")
    program = "from relm.provenance.container import packages; print('\\n'.join(packages()['installed']))"
    source = str(Path(surroundings.__file__).parents[2])
    path = ":".join([str(tmp_path / "first"), str(tmp_path / "second"), source])
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.split() if line.startswith("some")] == ["some-thing==2.0"]


@pytest.mark.parametrize(
    ("variable", "commit", "changed"),
    [("a" * 40, "a" * 40, False), ("a" * 40 + "+changes", "a" * 40, True), ("unknown", None, None)],
)
def test_in_an_image_the_code_is_of_the_commit_that_it_was_built_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, commit: str | None, changed: bool | None
) -> None:
    installed = tmp_path / "lib/python3.11/site-packages/relm"
    installed.mkdir(parents=True)
    monkeypatch.setattr("relm.__file__", str(installed / "__init__.py"))
    monkeypatch.setenv("RELM_IMAGE_COMMIT", variable)
    code = read_commit()
    assert (code["commit"], code["changed"]) == (commit, changed)


def test_a_checkout_records_its_own_commit_whatever_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_IMAGE_COMMIT", "a" * 40)
    assert read_commit()["commit"] != "a" * 40


def test_in_a_container_the_home_of_the_caller_is_not_recorded_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/tmp")
    monkeypatch.setenv("LOGNAME", "nobody")
    monkeypatch.chdir(tmp_path)
    assert shorten_path(Path("/home/alice/texts/a.txt")) == "/home/USER/texts/a.txt"
    assert "alice" not in json.dumps(mask_value(["--from=/home/alice/x", "in '/home/alice' and /Users/alice/y"]))


def test_a_virtual_machine_made_from_an_image_is_no_container_of_docker(tmp_path: Path) -> None:
    mounts = at(at(tmp_path, ".dockerenv"), "proc/self/mountinfo") / "proc/self/mountinfo"
    root = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    mounts.write_text(root)
    assert container({}, tmp_path) is None
    mounts.write_text(f"{root}30 22 254:0 /docker/containers/1/hostname /etc/hostname rw - ext4 /dev/vda rw\n")
    found = container({}, tmp_path)
    assert found is not None
    assert found["engine"] == "docker"


def test_a_git_that_prints_its_usage_is_reported_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text(
        "#!/bin/sh\necho 'Unknown option: --no-optional-locks' >&2\necho 'usage: git [--version]' >&2\nexit 129\n"
    )
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit()["reason"] == "git: Unknown option: --no-optional-locks"
