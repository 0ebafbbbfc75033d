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


def test_outside_any_container_none_is_recorded(tmp_path: Path) -> None:
    assert container({"HOME": "/root"}, tmp_path) is None
    assert format_container(None) == "outside any container"


@pytest.mark.parametrize(("mark", "engine"), [(".dockerenv", "docker"), ("run/.containerenv", "podman")])
def test_an_engine_is_known_by_the_file_it_leaves_and_the_image_by_what_the_run_line_says(
    tmp_path: Path, mark: str, engine: str
) -> None:
    found = container({"RELM_IMAGE": PUBLISHED, "RELM_IMAGE_ROLE": "cpu"}, at(tmp_path, mark))
    assert found == {"engine": engine, "role": "cpu", "image": PUBLISHED, "digest": ID}


def test_podman_is_known_by_its_variable_where_a_read_only_root_hides_its_file(tmp_path: Path) -> None:
    found = container({"container": "podman", "RELM_IMAGE": ID}, tmp_path)
    assert found is not None
    assert found["engine"] == "podman"
    assert container({"container": "systemd-nspawn"}, tmp_path) is None


@pytest.mark.parametrize("name", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_apptainer_is_known_by_its_variable(tmp_path: Path, name: str) -> None:
    found = container({name: "/images/x.sif"}, tmp_path)
    assert found == {"engine": "apptainer", "role": None, "image": None, "digest": None}
    assert format_container(found) == "in a container by Apptainer, image unknown"


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


def test_an_image_that_was_built_here_has_its_id_for_a_digest(tmp_path: Path) -> None:
    found = container({"RELM_IMAGE": ID}, at(tmp_path, ".dockerenv"))
    assert found is not None
    assert found["digest"] == ID
    assert format_container(found) == f"in the image {ID} by Docker"


@pytest.mark.parametrize("image", ["relm/cpu:0.1.0", "relm/cpu@sha256:abc", f"{ID}0"])
def test_what_is_no_digest_is_not_taken_for_one(tmp_path: Path, image: str) -> None:
    found = container({"RELM_IMAGE": image}, at(tmp_path, ".dockerenv"))
    assert found is not None
    assert found["digest"] is None
    assert format_container(found).endswith(", digest unknown")


def test_an_image_of_ours_is_noticed_under_an_engine_that_leaves_no_sign(tmp_path: Path) -> None:
    found = container({"RELM_IMAGE_ROLE": "tpu"}, tmp_path)
    assert found == {"engine": "unknown", "role": "tpu", "image": None, "digest": None}
    assert format_container(found) == "in a container (relm's for tpu) by an unknown engine, image unknown"


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
