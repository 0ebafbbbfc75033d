"""Long tests: a registry, real Apptainer, failures in the middle, and the images whose bases are out of reach here."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from engines import STAND_IN, Engine, install
from image_project import ApptainerImage, ImageProject, build, make_image_project
from local_registry import docker_registry
from test_steps_in_images import in_image

from relm.artifact import sha256_of
from relm.containers.lock import LOCK, OVERRIDE, Role
from relm.recipes.project import Project
from small_project import FRAMES

pytestmark = [pytest.mark.containers, pytest.mark.full, pytest.mark.timeout(3600)]
REGISTRY = "127.0.0.1:5555"
SMALL_RULE = "work/downloads/data/enwiki_206_pages/a53f4648dec4/enwiki-206-pages.xml.bz2"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry of this machine's own, at the address that podman's settings allow without TLS."""
    install("docker-registry")
    with docker_registry(tmp_path, REGISTRY) as host:
        yield host


@pytest.fixture
def as_published(in_podman: ImageProject) -> Iterator[ImageProject]:
    """A project with nothing built here: only the lock counts."""
    lock, override = in_podman.folder / LOCK, in_podman.folder / OVERRIDE
    kept = lock.read_text(), override.read_text()
    override.unlink()
    yield in_podman
    lock.write_text(kept[0])
    override.write_text(kept[1])


def lock_a_digest(project: ImageProject, image: str, digest: str) -> None:
    """Write a verified digest into the lock."""
    content = yaml.safe_load((project.folder / LOCK).read_text())
    found = {"image": image, "tag": "1", "digest": digest, "verified": True, "source": "the registry", "checked": "2026-11-20"}
    content["images"]["cpu"] |= found
    (project.folder / LOCK).write_text(yaml.safe_dump(content))


def test_a_published_image_is_pulled_by_its_digest_and_runs_a_rule(as_published: ImageProject, registry: str) -> None:
    engine, name = as_published.engine, f"{registry}/relm/cpu"
    identity = engine.run("image", "inspect", "--format", "{{.Id}}", "relm/cpu:0.1.0").stdout.strip()
    engine.run("push", "--digestfile", str(as_published.folder / "digest"), identity, f"{name}:1")
    digest = (as_published.folder / "digest").read_text().strip()
    lock_a_digest(as_published, name, digest)
    prefix = ("--sdm", "apptainer", "--apptainer-prefix", str(as_published.folder / "pulled"))
    done = as_published.snakemake(SMALL_RULE, "--forceall", *prefix)
    assert done.returncode == 0, done.stdout
    assert f"--env RELM_IMAGE={name}:1@{digest}" in done.stdout


def test_a_digest_that_the_registry_has_not_is_an_error_of_the_registrys(as_published: ImageProject, registry: str) -> None:
    lock_a_digest(as_published, f"{registry}/relm/cpu", f"sha256:{'0' * 64}")
    done = as_published.snakemake(SMALL_RULE, "--forceall", "--sdm", "apptainer")
    assert done.returncode != 0
    assert re.search("manifest unknown|name unknown", done.stdout)


def test_a_wheel_with_another_hash_ends_the_build(in_podman: ImageProject) -> None:
    made = in_podman.command("python", "-m", "relm", "images", "build", "cpu")
    assert "is not verified" in made.stdout  # the base's digest: this is refused by default
    lock = in_podman.folder / "envs" / "torch-cpu.txt"
    kept = lock.read_text()
    lock.write_text(re.sub("sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", kept))
    try:
        done = in_podman.command("python", "-m", "relm", "images", "build", "cpu", "--base", STAND_IN)
    finally:
        lock.write_text(kept)
    assert done.returncode != 0
    assert "torch-cpu.txt: pip could not fetch its packages" in done.stdout
    assert "DO NOT MATCH THE HASHES" in done.stdout


def test_a_full_disk_is_named_without_a_traceback(in_podman: ImageProject) -> None:
    small = in_podman.folder / "work" / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        words = ["extract", "--dataset", "recipes/data/enwiki_206_pages.yaml", "--source", SMALL_RULE]
        outputs = ["--train", "work/small/a.jsonl", "--held-out", "work/small/b.jsonl"]
        done = in_podman.command(*in_image(in_podman, *words, *outputs, user=(0, 0), writable=[in_podman.folder, small]))
        left = sorted(path.name for path in small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert done.returncode != 0
    assert re.search("No space left on device|make room", done.stdout), done.stdout
    assert "Traceback" not in done.stdout
    assert left == []


def test_relm_images_trains_in_the_image_to_the_published_bytes(in_docker: ImageProject, tmp_path: Path) -> None:
    """In a copy: steps of the finished project name the image that they ran in."""
    copy = dataclasses.replace(in_docker, folder=tmp_path / "copy")
    shutil.copytree(in_docker.folder, copy.folder, symlinks=True)
    plan = Project(copy.folder).plan("smoke/quickstart")
    (phase,) = plan.phases
    words = ["--phase", phase, "--manifest", str(plan.manifest(phase)), "--tokenizer", str(plan.tokenizer)]
    model = Path("work/by-socket/model/model.safetensors")
    done = copy.command(
        sys.executable, "-m", "relm", "images", "run", "cpu", "--", "pretrain", plan.name, *words, "--output", str(model)
    )
    assert done.returncode == 0, done.stdout
    published = copy.folder / "results/smoke/quickstart/model.safetensors"
    assert sha256_of(copy.folder / model) == sha256_of(published)


def test_real_apptainer_runs_a_rule(in_podman: ImageProject, apptainer: ApptainerImage) -> None:
    override = in_podman.folder / OVERRIDE
    kept = override.read_text()
    apptainer.record(in_podman.folder)
    environment = in_podman.environment | {"PATH": f"{apptainer.program.parent}{os.pathsep}{in_podman.environment['PATH']}"}
    try:
        rule = sorted((in_podman.folder / "work" / "examples").glob("*/manifest.json"))[0].relative_to(in_podman.folder)
        command = ["snakemake", str(rule), "--force", "--cores", "1", "--nocolor", "--sdm", "apptainer", FRAMES]
        done = subprocess.run(command, cwd=in_podman.folder, env=environment, text=True, capture_output=True)
    finally:
        override.write_text(kept)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Activating singularity image" in done.stdout + done.stderr
    assert "podman run" not in done.stdout + done.stderr
    record = json.loads((in_podman.folder / f"{rule}.record.json").read_text())
    assert record["container"]["engine"] == "apptainer"


@pytest.mark.parametrize("role", ["cuda", "ipu"])
def test_the_python_layer_of_an_image_whose_base_is_out_of_reach_is_built_on_the_stand_in(
    role: Role, podman_engine: Engine, tmp_path: Path
) -> None:
    """With the CPU's torch: the recipe of the layer is tried, not the device's libraries, which need its base or 8 GB."""
    project = make_image_project(tmp_path, podman_engine)
    dockerfile = project.folder / "containers" / "Dockerfile"
    # The compilers come over the network, from the base's own package mirror.
    dockerfile.write_text(re.sub(r"apt-get update .*", r"true \\", dockerfile.read_text()))
    (project.folder / "envs" / "torch-cuda.txt").write_text((project.folder / "envs" / "torch-cpu.txt").read_text())
    bases = {"BASE": STAND_IN, **({"PYTHON": STAND_IN} if role == "ipu" else {})}
    started = time.monotonic()
    build(project, role, bases)
    seconds, image = time.monotonic() - started, project.built(role).id
    size = json.loads(project.engine.run("image", "inspect", image).stdout)[0]["Size"]
    print(f"the {role} image's Python layer on the stand-in, with the CPU's torch: {size / 1e9:.2f} GB in {seconds:.0f} s")
    done = project.engine.run("run", "--rm", "--network=none", image, "pretrain", "--help")
    assert "Train one phase of a recipe" in done.stdout
