"""A run is pushed and pulled unchanged: no step is repeated, and an interrupted run resumes."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import sha256_of
from relm.cli import main
from small_project import Commands

TIMES = ("seconds", "per_second", "memory", "resumed_after")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the role of a bucket."""
    return tmp_path_factory.mktemp("store")


class Terminal:
    """Runs commands in this process, since these tests run many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, project: Commands, *arguments: str, status: int = 0) -> str:
        """Run a command in a project and return its output."""
        self._monkeypatch.chdir(project.folder)
        found = main(arguments)
        captured = self._capsys.readouterr()
        assert found == status, captured.err
        return captured.err if status else captured.out


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """A terminal."""
    monkeypatch.delenv("RELM_WORK", raising=False)
    return Terminal(monkeypatch, capsys)


def contents(folder: Path) -> dict[str, str]:
    """Path -> sha256 of all files of a run and its data, but for what belongs to a machine."""
    files = [path for path in (folder / "work").rglob("*") if path.is_file()]
    machine = {"lock", "shards.json"}
    return {
        str(path.relative_to(folder)): sha256_of(path)
        for path in files
        if path.name not in machine and not path.name.startswith(".") and not {"logs", "checked"}.intersection(path.parts)
    }


def run_folder(project: Commands) -> Path:
    (found,) = project.folder.glob("work/runs/tiny/*")
    return found


def objects(store: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in (store / "objects").glob("*")}


def cut_back(project: Commands, step: int) -> None:
    """Leave a run as a kill some log lines after a checkpoint would."""
    run = run_folder(project)
    made = [run / name for name in ("main/model", "main/logs", "eval", "verify", "report")]
    for folder in (*made, project.folder / "results" / "tiny"):
        shutil.rmtree(folder)
    for checkpoint in (run / "main" / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    for name, last in {"train.jsonl": step + 5, "checkpoints.jsonl": step}.items():
        log = run / "main" / name
        lines = [line for line in log.read_text().splitlines(keepends=True) if json.loads(line)["step"] <= last]
        log.write_text("".join(lines))


def steps_of(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [{key: value for key, value in line.items() if not any(word in key for word in TIMES)} for line in lines]


@pytest.mark.full
def test_what_is_pulled_into_a_fresh_clone_needs_only_to_be_published(
    terminal: Terminal, finished_project: Commands, project: Commands, store: Path
) -> None:
    sent = terminal(finished_project, "push", str(store), "tiny")
    assert "tiny: " in sent
    assert all(name == sha256 for name, sha256 in objects(store).items())
    fetched = terminal(project, "pull", f"file://{store}", "tiny")
    assert "fetched" in fetched
    assert contents(project.folder) == contents(finished_project.folder)
    assert set(project.jobs("results/tiny")) == {"publish"}
    assert "0 of them fetched" in terminal(project, "pull", str(store))

    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    assert "0 of them sent (0 B)" in terminal(finished_project, "push", str(store))
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()} == before, "written once"


def test_results_in_the_list_of_an_earlier_version_are_left_to_publish(
    terminal: Terminal, finished_project: Commands, project: Commands, store: Path
) -> None:
    terminal(finished_project, "push", str(store), "tiny")
    (path,) = (store / "runs").rglob("*.json")
    index = json.loads(path.read_text())
    index["files"].append({"path": "results/tiny/README.md", "sha256": "0" * 64, "size": 1})
    path.write_text(json.dumps(index))
    terminal(project, "pull", str(store), "tiny")
    assert set(project.jobs("results/tiny")) == {"publish"}


def test_a_source_that_was_deleted_after_use_is_not_sent_and_not_made_again_elsewhere(
    terminal: Terminal, finished_copy: Commands, project: Commands, store: Path
) -> None:
    found = [*finished_copy.folder.glob("work/downloads/data/*/*/*"), *finished_copy.folder.glob("work/documents/*/*")]
    sources = {path: sha256_of(path) for path in found if path.suffix != ".json"}
    assert len(sources) == 3
    for path in sources:
        path.unlink()
    terminal(finished_copy, "push", str(store), "tiny")
    assert objects(store).keys().isdisjoint(sources.values())
    terminal(project, "pull", str(store), "tiny")
    assert contents(project.folder) == contents(finished_copy.folder)
    assert set(project.jobs("results/tiny")) == set(project.jobs("results/tiny", "--config", "shards_on_disk=1")) == {"publish"}
    assert "3 sources were deleted after use" in terminal(
        project, "check", str(run_folder(project).relative_to(project.folder))
    )


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_run_that_was_cut_back_resumes_elsewhere_to_the_same_bytes(
    terminal: Terminal, finished_project: Commands, finished_copy: Commands, project: Commands, store: Path
) -> None:
    steps = sorted(int(path.name.removeprefix("step-")) for path in run_folder(finished_copy).glob("main/checkpoints/step-*"))
    cut_back(finished_copy, steps[-2])
    terminal(finished_copy, "push", str(store), "tiny")
    terminal(project, "pull", str(store), "tiny")
    assert set(project.jobs("results/tiny")) == {*("pretrain", "evaluate", "verify", "report", "publish")}
    done = project.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    here, there = run_folder(project) / "main", run_folder(finished_project) / "main"
    for name in ("model/model.safetensors", "checkpoints.jsonl", "order.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert steps_of(here / "train.jsonl") == steps_of(there / "train.jsonl")

    terminal(project, "push", str(store), "tiny")
    terminal(finished_copy, "pull", str(store), "tiny")
    assert set(finished_copy.jobs("results/tiny")) == {"publish"}, "and back where it began"
    assert sha256_of(run_folder(finished_copy) / "main" / "model" / "model.safetensors") == sha256_of(
        there / "model" / "model.safetensors"
    )


@pytest.mark.parametrize("point", ["push-whole:2", pytest.param("push-whole:5", marks=pytest.mark.full)])
def test_a_push_that_was_killed_leaves_whole_objects_alone_and_is_finished_by_the_next(
    terminal: Terminal, point: str, finished_project: Commands, project: Commands, store: Path
) -> None:
    killed = finished_project.relm("push", str(store), "tiny", RELM_KILL_AT=point)
    assert killed.returncode == -signal.SIGKILL
    assert objects(store), "it was killed in the middle"
    assert all(name == sha256 for name, sha256 in objects(store).items())
    assert not (store / "runs").exists(), "nothing is listed before all of it is there"
    assert "has no run tiny" in terminal(project, "pull", str(store), "tiny", status=1)
    terminal(finished_project, "push", str(store), "tiny")
    terminal(project, "pull", str(store), "tiny")
    assert contents(project.folder) == contents(finished_project.folder)


@pytest.mark.parametrize("point", ["pull-piece:4", pytest.param("pull-file:9", marks=pytest.mark.full)])
def test_a_pull_that_was_killed_is_finished_by_the_next(
    terminal: Terminal, point: str, finished_project: Commands, project: Commands, store: Path
) -> None:
    terminal(finished_project, "push", str(store), "tiny")
    killed = project.relm("pull", str(store), "tiny", RELM_KILL_AT=point)
    assert killed.returncode == -signal.SIGKILL
    whole = contents(finished_project.folder)
    assert all(whole[name] == sha256 for name, sha256 in contents(project.folder).items())
    terminal(project, "pull", str(store), "tiny")
    assert contents(project.folder) == whole
    assert not list(project.folder.glob("work/**/.*.partial"))


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:-1] + b"x"], ids=["short", "changed"]
)
def test_a_damaged_object_is_named_and_not_written(
    terminal: Terminal, damage, finished_project: Commands, project: Commands, store: Path
) -> None:
    terminal(finished_project, "push", str(store), "tiny")
    sha256 = sha256_of(finished_project.folder / "mirror/sample.xml")
    path = store / "objects" / sha256
    path.write_bytes(damage(path.read_bytes()))
    message = terminal(project, "pull", str(store), "tiny", status=1)
    assert f"objects/{sha256}: damaged" in message
    assert f"work/downloads/data/sample/{sha256[:12]}/sample.xml was not written. Delete that object, and push again" in message
    assert not list((project.folder / "work" / "downloads" / "data" / "sample").rglob("*sample.xml*"))


def test_what_was_damaged_here_is_not_pushed(terminal: Terminal, finished_copy: Commands, store: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        path = run_folder(finished_copy) / "main" / "model" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        message = terminal(finished_copy, "push", str(store), "tiny", status=1)
        assert f"main/model/{name}: sha256 is" in message
        assert "damaged since it was made" in message
        assert not (store / "runs").exists()
        path.write_bytes(content)


def test_an_older_state_is_not_put_over_a_newer_one(
    terminal: Terminal, finished_project: Commands, finished_copy: Commands, store: Path
) -> None:
    copy = Commands(finished_copy.folder)
    steps = sorted(int(path.name.removeprefix("step-")) for path in run_folder(copy).glob("main/checkpoints/step-*"))
    cut_back(copy, steps[-2])
    terminal(copy, "push", str(store), "tiny")
    before = contents(finished_project.folder)
    message = terminal(finished_project, "pull", str(store), "tiny", status=1)
    assert f"this run (step {steps[-1]} of phase main) is further than" in message
    assert contents(finished_project.folder) == before


def test_a_run_in_training_is_not_pulled_over(
    terminal: Terminal, finished_project: Commands, finished_copy: Commands, store: Path
) -> None:
    terminal(finished_project, "push", str(store), "tiny")
    lock = run_folder(finished_copy) / "main" / "lock"
    program = "import pathlib, sys, time; from relm.training.interruption import run_lock\n"
    program += "with run_lock(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    trainer = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE)
    try:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"held\n"
        assert "another process trains here already" in terminal(finished_copy, "pull", str(store), "tiny", status=1)
    finally:
        trainer.kill()
        trainer.wait()


def test_a_store_without_the_run_or_with_another_meaning_of_it_says_so(
    terminal: Terminal, finished_project: Commands, project: Commands, store: Path
) -> None:
    assert "has no run of a recipe here; runs there: none" in terminal(project, "pull", str(store), status=1)
    terminal(finished_project, "push", str(store), "tiny")
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 41"))
    fingerprint = run_folder(finished_project).name
    message = terminal(project, "pull", str(store), "tiny", status=1)
    assert f"tiny has fingerprint {fingerprint} there, but " in message
    assert "check out the commit that pushed it" in message
