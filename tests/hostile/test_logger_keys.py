"""Keys of loggers: the training step has them and nothing else that runs."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from relm.cli import main
from relm.containers.lock import find_image
from relm.containers.placement import place_step
from relm.containers.run_line import ContainerRun, run_line
from relm.recipes.project import Project
from relm.recipes.redaction import LOGGER_KEYS
from small_project import Commands

CALLER = {"WANDB_API_KEY": "secret-key", "WANDB_BASE_URL": "https://me:secret@example.org", "WANDB_MODE": "online"}
SURFACE = "keys of loggers"
REFUSED: dict[str, object] = {}
OTHERS = {
    "download": ["download", "--dataset", "recipes/data/sample.yaml", "--file", "sample.xml"],
    "extract": ["extract", "--dataset", "recipes/data/sample.yaml"],
    "pregenerate": ["pregenerate"],
    "held-out": ["held-out"],
    "report": ["report", "tiny"],
    "push": ["push", "tiny", "gs://bucket"],
    "no step": [],
}

# Steps of which none may have a key, in a container with and without a network of its own and outside any.
OUTSIDE = [("extract", False), ("held-out", False), ("pretrain", True)]
SURVIVED = [*((role, name) for role in ("cpu", "tpu") for name in OTHERS), "training to the disk", *OUTSIDE[:2]]


def line_of(words: list[str], project: Commands, monkeypatch: pytest.MonkeyPatch, role: str | None = None) -> list[str]:
    """The words of `docker run` for a step, in the image of its role or of another."""
    path = project.folder / "recipes/tiny.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "run": {"loggers": ["wandb"]}}))
    monkeypatch.chdir(project.folder)
    for name, value in CALLER.items():
        monkeypatch.setenv(name, value)
    placed = place_step(words, Project())
    image = find_image(role or placed.role)  # type: ignore[arg-type]
    run = ContainerRun(image, "sha256:0", words, writable=[], network=placed.network, logs=placed.logs)
    return run_line("docker", run, CALLER)


@pytest.mark.parametrize("role", ["cpu", "tpu"])  # an image of the TPU always has the network
@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_no_other_step_in_a_container_has_a_loggers_key(
    words: list[str], role: str, project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = line_of(words, project, monkeypatch, role)
    assert not {"WANDB_API_KEY", "WANDB_BASE_URL"} & set(line)
    assert not [word for word in line if "secret" in word]


def test_training_that_logs_to_a_server_has_the_key_by_name(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    line = line_of(["pretrain", "tiny", "--phase", "main"], project, monkeypatch)
    assert line[line.index("WANDB_API_KEY") - 1] == "--env"
    assert not [word for word in line if "secret" in word]


def test_training_that_logs_to_the_disk_has_no_key(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLER, "WANDB_MODE", "offline")
    assert "WANDB_API_KEY" not in line_of(["pretrain", "tiny", "--phase", "main"], project, monkeypatch)


@pytest.mark.parametrize(("step", "has_key"), OUTSIDE)
def test_only_training_keeps_the_keys_in_its_environment(
    step: str, has_key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {**os.environ, **CALLER, **dict.fromkeys(LOGGER_KEYS, "secret")})
    seen: list[Mapping[str, str]] = []

    def note(*_: object) -> str:
        seen.append(dict(os.environ))
        return "done"

    monkeypatch.setattr("relm.cli.run_step", note)
    words = {
        "extract": ["--dataset", "d", "--source", "s", "--train", "t", "--held-out", "h"],
        "held-out": ["--manifest", "m", "--job", "{}", "--model", "m", "--output", "o"],
        "pretrain": ["tiny", "--phase", "main", "--manifest", "m", "--tokenizer", "t", "--output", "o"],
    }
    assert main([step, *words[step]]) == 0
    assert [bool(set(LOGGER_KEYS) & set(environment)) for environment in seen] == [has_key]
