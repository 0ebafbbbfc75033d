"""The engine is chosen once, and whatever keeps relm from it is one clear sentence."""

from pathlib import Path

import pytest

from relm.cli import main
from relm.containers.engine import ENGINES, choose_engine
from relm.errors import RelmError
from small_project import Commands


def install_programs(folder: Path, *names: str) -> str:
    """Make programs that do nothing, and return a PATH with only them."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_podman_comes_before_docker_and_relm_engine_before_both(tmp_path: Path) -> None:
    both, docker = install_programs(tmp_path / "both", *ENGINES), install_programs(tmp_path / "one", "docker")
    assert choose_engine({"PATH": both}) == "podman"
    assert choose_engine({"PATH": docker}) == "docker"
    assert choose_engine({"PATH": both, "RELM_ENGINE": "docker"}) == "docker"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({}, "podman and docker are not installed; install one"),
        ({"RELM_ENGINE": "rkt"}, "RELM_ENGINE: 'rkt' is not an engine; expected podman or docker"),
        ({"RELM_ENGINE": "podman"}, "RELM_ENGINE: 'podman' is not installed; expected podman or docker"),
    ],
)
def test_no_engine_and_a_strange_engine_are_named(chosen: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=message):
        choose_engine({"PATH": str(tmp_path), **chosen})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "cpu"], "no step was given; expected: relm images run cpu -- STEP ARGUMENTS"),
        (["run", "cpu", "list", "--log", "x"], "--log belongs to the step that runs in the image; put it after --"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_command_is_named(
    arguments: list[str], message: str, project: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(["images", *arguments]) == 1
    assert capsys.readouterr().err == f"relm images: {message}\n"
