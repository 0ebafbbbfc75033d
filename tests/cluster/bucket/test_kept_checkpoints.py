"""Checkpoints of a run in a store while it trains: another machine goes on from the newest one, to the same bytes."""

import json
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from relm.artifact import sha256_of
from small_project import Commands

LONG = 400
"""Steps of a run that is not over before the first look at its checkpoints."""


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the role of a bucket."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def untrained(finished_copy: Commands) -> Commands:
    """A project with its data, and nothing trained."""
    lose_the_disk(finished_copy)
    return finished_copy


def lose_the_disk(project: Commands) -> None:
    """Delete what training wrote."""
    for folder in ("work/runs", "results"):
        shutil.rmtree(project.folder / folder, ignore_errors=True)


def train(
    project: Commands, store: str | None, *words: str, steps: int = 0, processes: int = 0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Train by the command of the rule, with a store."""
    settings = {"run.checkpoints_to": store, "pretrain.main.steps": steps, "run.processes": processes}
    given = [word for key, value in settings.items() if value for word in ("--set", f"{key}={value}")]
    shown = project.relm("pretrain", "tiny", "--print", *given).stdout
    line = next(line for line in shown.splitlines() if " pretrain " in line and "docker" not in line)
    return project.relm(*words, "pretrain", *shlex.split(line.split(" pretrain ")[1]), **environment)


def weights(project: Commands) -> str:
    (found,) = project.folder.glob("work/runs/tiny*/*/main/model/model.safetensors")
    return sha256_of(found)


@pytest.mark.parametrize(
    "point",
    ["checkpoints-pushed:1", *(pytest.param(name, marks=pytest.mark.full) for name in ("push-whole:2", "checkpoint-saved:2"))],
)
def test_a_killed_run_whose_disk_is_lost_ends_elsewhere_with_the_same_bytes(
    untrained: Commands, store: Path, point: str
) -> None:
    killed = train(untrained, f"file://{store}", steps=LONG, RELM_KILL_AT=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    is_listed = (store / "runs").exists()
    assert is_listed == (point == "checkpoints-pushed:1")
    lose_the_disk(untrained)
    done = train(untrained, f"file://{store}", steps=LONG)
    assert done.returncode == 0, done.stderr
    (log,) = untrained.folder.glob("work/runs/tiny*/*/main/train.jsonl")
    assert ("resumed_after" in log.read_text()) == ("fetched" in done.stderr) == is_listed
    found = weights(untrained)
    lose_the_disk(untrained)
    assert train(untrained, None, steps=LONG).returncode == 0
    assert weights(untrained) == found


def test_a_store_keeps_two_lists_of_a_run_and_the_checkpoints_that_they_name(untrained: Commands, store: Path) -> None:
    assert train(untrained, f"file://{store}", steps=2 * LONG).returncode == 0
    lists = [json.loads(path.read_text())["files"] for path in (store / "runs").rglob("*.json")]
    assert 1 <= len(lists) <= 2
    named = {file["sha256"] for files in lists for file in files}
    kept = {path.name: path.stat().st_size for path in (store / "objects").iterdir()}
    assert named <= kept.keys()
    (model,) = untrained.folder.glob("work/runs/tiny*/*/main/model/model.safetensors")
    assert not [name for name in kept.keys() - named if kept[name] >= model.stat().st_size]


def test_a_finished_phase_is_taken_from_the_store_and_not_trained_again(
    untrained: Commands, finished_project: Commands, store: Path
) -> None:
    assert train(untrained, f"file://{store}").returncode == 0
    lose_the_disk(untrained)
    done = train(untrained, f"file://{store}")
    assert (done.returncode, "already trained" in done.stdout) == (0, True), done.stderr
    assert weights(untrained) == weights(finished_project)


def test_data_and_results_that_were_pushed_stay_listed(finished_copy: Commands, store: Path) -> None:
    assert finished_copy.relm("push", f"file://{store}", "tiny").returncode == 0

    def list_rest() -> list[str]:
        index = json.loads(max((store / "runs").rglob("*.json")).read_text())
        return [file["path"] for file in index["files"] if not file["path"].startswith("work/runs/")]

    before = list_rest()
    lose_the_disk(finished_copy)
    assert train(finished_copy, f"file://{store}").returncode == 0
    assert len(before) > 10
    assert list_rest() == before


def test_a_store_that_is_gone_costs_no_training(untrained: Commands, finished_project: Commands, store: Path) -> None:
    (store / "objects").write_text("a file in place of a folder")
    done = train(untrained, f"file://{store}")
    assert done.returncode == 0, done.stderr
    assert "the newest checkpoint is only on this machine" in done.stderr
    assert weights(untrained) == weights(finished_project)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("bucket/relm", "run.checkpoints_to"),
        ("gs://key@bucket", "run.checkpoints_to"),
        ("gs://bucket?token=1", "run.checkpoints_to"),
        ("nothing://bucket", "nothing://bucket: cannot be opened"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_training(untrained: Commands, address: str, message: str) -> None:
    done = untrained.relm("pretrain", "tiny", "--set", f"run.checkpoints_to={address}")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(untrained.folder.glob("work/runs/tiny/*/main/checkpoints/*"))


@pytest.mark.full
def test_the_process_that_starts_two_ranks_keeps_their_checkpoints(untrained: Commands, store: Path) -> None:
    killed = train(untrained, f"file://{store}", "--processes", "2", processes=2, RELM_KILL_AT="checkpoints-pushed:1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    lose_the_disk(untrained)
    done = train(untrained, f"file://{store}", "--processes", "2", processes=2)
    assert done.returncode == 0, done.stderr
    assert "fetched" in done.stderr
