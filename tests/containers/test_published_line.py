"""The published line of `docker run`, copied into a shell, gives the bytes that the step gives without a container."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from image_project import ImageProject

from relm.containers.shell_line import plain_line

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1500)]


@pytest.fixture(scope="session", params=["podman", pytest.param("docker", marks=pytest.mark.full)])
def project(request: pytest.FixtureRequest) -> ImageProject:
    """The finished project in one of the engines."""
    made: ImageProject = request.getfixturevalue(f"in_{request.param}")
    return made


def provenance(project: ImageProject) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((project.folder / "results/smoke/quickstart/provenance.json").read_text())
    return content


def in_a_shell(project: ImageProject, line: str, programs: Path) -> str:
    """Run a line as a person would who has a `docker` command; podman's takes the same words."""
    if project.engine.name == "podman":
        programs.mkdir(exist_ok=True)
        (programs / "docker").write_text('#!/bin/sh\nexec podman "$@"\n')
        (programs / "docker").chmod(0o755)
    environment = {**project.environment, "PATH": f"{programs}{os.pathsep}{project.environment['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", line], cwd=project.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("step", ["evaluate"])
def test_a_published_line_makes_the_bytes_that_were_published_and_that_come_without_a_container(
    project: ImageProject, tmp_path: Path, step: str
) -> None:
    record = next(record for record in provenance(project)["steps"] if record["step"] == step)
    output = project.folder / record["outputs"][0]["path"]
    made = {"published": output.read_bytes()}
    for name, line in (("docker run", record["docker"]["line"]), ("plain", plain_line(record["argv"]))):
        output.unlink()
        in_a_shell(project, line, tmp_path / "programs")
        made[name] = output.read_bytes()
        beside = json.loads(output.with_name(f"{output.name}.record.json").read_text())
        ran_in = (beside["container"] or {}).get("image")
        assert (ran_in == project.built("cpu").id) == (name == "docker run")
    assert len(set(made.values())) == 1, sorted(made)


def test_every_step_says_in_which_image_it_ran_with_which_packages_and_of_which_commit(project: ImageProject) -> None:
    published, built = provenance(project), project.built("cpu")
    assert {record["container"]["image"] for record in published["steps"]} == {built.id}
    assert {record["container"]["digest"] for record in published["steps"]} == {built.id}
    assert {record["container"]["engine"] for record in published["steps"]} == {project.engine.name}
    assert {record["docker"]["image"] for record in published["steps"]} == {built.id}
    assert {record["code"]["commit"] for record in published["steps"]} == {(built.commit or "").partition("+")[0] or None}
    ((sha256, installed),) = published["packages"].items()
    assert {record["packages"] for record in published["steps"]} == {sha256}
    assert any(line.startswith("torch==") for line in installed)
    assert not any(line.startswith("pytest==") for line in installed)
    page = (project.folder / "results/smoke/quickstart/report.html").read_text()
    assert f"{len(published['steps'])} steps in the image {built.id} (relm&#39;s for cpu) by " in page
