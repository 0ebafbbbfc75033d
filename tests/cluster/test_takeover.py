"""`relm continue` takes a run over from another machine, whole or not at all, and the same commands resume it there."""

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from made_once import copy_of
from relm.artifact import seal, sha256_of
from relm.training.checkpoint_state import read_state, write_state
from relm.training.interruption import run_lock
from small_project import Commands

TWO_PHASES = """
extends: tiny
pretrain:
  main: {steps: 20}
  second: {objective: causal, sequence_length: 32, global_batch_size: 4, steps: 40, optimizer_state: kept,
           optimizer: {learning_rate: 1e-3, gradient_clipping: 1.0}, schedule: {name: cosine, warmup_steps: 5}}
evaluate: [training]
expect: [{metric: training.sequences_per_second, value: 5, tolerance: 1, basis: none, place: here, measured_on: cpu}]
run: {machine: cpu, micro_batch_size: 2, log_interval: 1}
on:
  same: {micro_batch_size: 2, threads: 1}
  other: {micro_batch_size: 4, threads: 2}
"""
# The command is killed in the second phase, before the checkpoint of step 30 has its name.
KILL = "checkpoint-written:3"


def add_machines(project: Commands) -> Commands:
    """Add a recipe of two phases, and machines that are CPUs as well."""
    recipes = project.folder / "recipes"
    (recipes / "machines").mkdir()
    for name in ("cpu", "same", "other"):
        (recipes / "machines" / f"{name}.yaml").write_text(f"title: A CPU called {name}\ndevice: cpu\n")
    (recipes / "long.yaml").write_text(TWO_PHASES)
    (recipes / "undropped.yaml").write_text("extends: long\nmodel: {dropout: 0.0}\n")
    return project


def interrupt(project: Commands, name: str) -> None:
    done = project.snakemake(f"results/{name}", RELM_KILL_AT=KILL)
    assert done.returncode != 0
    assert (run_of(project, name) / "second" / "checkpoints" / "step-00000020").exists(), done.stdout


def train_on(project: Commands, name: str) -> None:
    """Resume a run that has begun, up to its last model."""
    model = run_of(project, name) / "second" / "model" / "model.safetensors"
    done = project.snakemake(str(model.relative_to(project.folder)))
    assert done.returncode == 0, done.stdout


def run_of(project: Commands, name: str) -> Path:
    (found,) = (project.folder / "work" / "runs" / name).glob("[0-9a-f]*")
    return found


def lines_of(run: Path, phase: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / phase / "train.jsonl").read_text().splitlines()]


def content(folder: Path) -> dict[str, str]:
    """Path -> sha256 of all files of a folder, also of those that are hidden, without locks, which name their last owner."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def refusal(project: Commands, *words: str) -> str:
    done = project.relm("continue", *words)
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def stopped(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """A project with a run of two phases that was killed in the second one; no test changes it."""
    return Commands(copy_of(tmp_path_factory, "stopped", lambda folder: start_and_kill(finished_project, folder)))


def start_and_kill(finished: Commands, folder: Path) -> None:
    """Copy the finished project, whose examples the run of two phases reads, and kill this run in its second phase."""
    subprocess.run(["cp", "-a", f"{finished.folder}/.", str(folder)], check=True)
    interrupt(add_machines(Commands(folder)), "long")


@pytest.fixture
def project(stopped: Commands, tmp_path: Path) -> Commands:
    """A copy of it."""
    shutil.copytree(stopped.folder, tmp_path / "copy", symlinks=True)
    return Commands(tmp_path / "copy")


@pytest.mark.full
def test_another_machine_ends_with_the_bytes_of_an_uninterrupted_run(project: Commands) -> None:
    done = project.relm("continue", "long@same", "--from", "long")
    assert done.returncode == 0, done.stderr
    assert "phase main is finished, phase second resumes after step 20" in done.stdout
    jobs = project.jobs("results/long@same")
    assert jobs == {"pretrain": 1, "evaluate": 1, "verify": 1, "report": 1, "publish": 1}
    finished = project.snakemake("results/long@same")
    assert finished.returncode == 0, finished.stdout
    (log,) = (project.folder / "work" / "logs" / "runs" / "long@same").glob("*/second.log")
    assert "resuming after step 20 of 40" in log.read_text()
    train_on(project, "long")
    here, there = run_of(project, "long"), run_of(project, "long@same")
    for phase in ("main", "second"):
        assert sha256_of(there / phase / "model" / "model.safetensors") == sha256_of(
            here / phase / "model" / "model.safetensors"
        )
        assert [line["loss"] for line in lines_of(there, phase)] == [line["loss"] for line in lines_of(here, phase)]
    begins = {line["step"]: line["machines"] for line in lines_of(there, "second") if "machines" in line}
    first, second = {"after_step": 0, "machine": "cpu"}, {"after_step": 20, "machine": "same"}
    assert begins == {1: [first], 21: [first, second]}
    provenance = json.loads((project.folder / "results" / "long@same" / "provenance.json").read_text())
    trained = [step for step in provenance["steps"] if step["step"] == "pretrain"]
    assert [step.get("taken_over_from") for step in trained] == ["long", None]
    assert not [step for step in provenance["steps"] if step["step"] is None]
    (row,) = json.loads(next(there.glob("verify/*/verify.json")).read_text())["rows"]
    assert row["verdict"] == "not comparable"
    assert "it was measured on cpu, and this run was trained on cpu, then on same" in row["sentence"]
    report = (project.folder / "results" / "long@same" / "report.html").read_text()
    assert "phase second on cpu from step 1 on; phase second on same from step 21 on" in report
    assert project.jobs("results/long@same") == {}


@pytest.mark.full
def test_another_micro_batch_sees_the_same_examples(project: Commands) -> None:
    interrupt(project, "undropped")
    assert project.relm("continue", "undropped@other", "--from", "undropped@cpu").returncode == 0
    for name in ("undropped", "undropped@other"):
        train_on(project, name)
    here, there = (run_of(project, name) for name in ("undropped", "undropped@other"))
    losses = [[line["loss"] for line in lines_of(run, "second")] for run in (here, there)]
    assert losses[0][:20] == losses[1][:20]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert (here / "second" / "order.json").read_text() == (there / "second" / "order.json").read_text()
    made_on = [json.loads(line)["made_on"] for line in (there / "second" / "checkpoints.jsonl").read_text().splitlines()]
    assert [(made["micro_batch_size"], made["threads"]) for made in made_on] == [(2, 1), (2, 1), (4, 2), (4, 2)]


@pytest.mark.parametrize(
    "point", ["takeover-file:1", "takeover-file:9", "takeover-staged:1", "takeover-moved:1", "takeover-renamed:1"]
)
def test_after_a_kill_there_is_everything_or_nothing(point: str, project: Commands) -> None:
    target = run_of(project, "long").parents[1] / "long@same" / run_of(project, "long").name
    (target / "before").mkdir(parents=True)
    (target / "before" / "held_out.json").write_text("{}")
    (target / "main").mkdir()
    (target / "main" / "lock").write_text("1\n")
    untouched = content(run_of(project, "long"))
    killed = project.relm("continue", "long@same", "--from", "long", RELM_KILL_AT=point)
    assert killed.returncode == -signal.SIGKILL
    begun = [path for path in target.glob("*/*") if path.name not in ("lock", "held_out.json")]
    assert bool(begun) == point.startswith("takeover-renamed")
    if begun:
        assert "has begun already" in refusal(project, "long@same", "--from", "long")
    else:
        assert project.relm("continue", "long@same", "--from", "long").returncode == 0
        assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert (target / "before" / "held_out.json").read_text() == "{}"
    assert (target / "second" / "checkpoints" / "step-00000020" / "state.json").exists()
    assert (target / "main" / "model" / "model.safetensors").exists()
    assert content(run_of(project, "long")) == untouched


def test_only_what_another_machine_needs_is_copied(project: Commands) -> None:
    assert project.relm("continue", "long@same", "--from", "long").returncode == 0
    here, there = content(run_of(project, "long")), content(run_of(project, "long@same"))
    assert set(here) > set(there)
    assert {path.split("/")[2] for path in there if "/checkpoints/" in path} == {"step-00000020"}
    assert {Path(path).name for path in set(here) - set(there)} >= {"shards.json"}
    changed = {path for path in there if there[path] != here[path]}
    assert changed == {"main/model/model.safetensors.record.json"}
    record = json.loads((run_of(project, "long@same") / changed.pop()).read_text())
    assert {entry["path"].split("/")[2] for entry in record["outputs"]} == {"long@same"}


def test_a_run_that_is_taken_over_twice_keeps_its_first_machine(project: Commands) -> None:
    assert project.relm("continue", "long@same", "--from", "long").returncode == 0
    assert project.relm("continue", "long@other", "--from", "long@same").returncode == 0
    record = json.loads((run_of(project, "long@other") / "main" / "model" / "model.safetensors.record.json").read_text())
    assert record["taken_over_from"] == "long"
    assert {entry["path"].split("/")[2] for entry in record["outputs"]} == {"long@other"}


def test_a_damaged_checkpoint_is_left_and_the_one_before_it_taken(project: Commands) -> None:
    checkpoints = run_of(project, "long") / "second" / "checkpoints"
    with (checkpoints / "step-00000020" / "model.safetensors").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"abc")
    done = project.relm("continue", "long@same", "--from", "long")
    assert "phase second resumes after step 10" in done.stdout, done.stderr
    assert "step-00000020: damaged; taking the checkpoint before it" in done.stderr
    shutil.rmtree(checkpoints / "step-00000010")
    shutil.rmtree(run_of(project, "long@same"))
    assert "phase main is finished. Next" in project.relm("continue", "long@same", "--from", "long").stdout


def test_a_checkpoint_whose_hashes_are_gone_is_left_too(project: Commands) -> None:
    path = run_of(project, "long") / "second" / "checkpoints" / "step-00000020" / "state.json"
    path.write_text(json.dumps(seal({**read_state(path.parent), "sha256": {}})))
    done = project.relm("continue", "long@same", "--from", "long")
    assert "phase second resumes after step 10" in done.stdout, done.stderr


@pytest.mark.parametrize(("phase", "step"), [("second", 20), ("main", 20)])
def test_a_checkpoint_of_another_run_is_refused_before_anything_is_copied(project: Commands, phase: str, step: int) -> None:
    run = run_of(project, "long")
    path = run / phase / "checkpoints" / f"step-{step:08d}" / "state.json"
    write_state(path.parent, {**read_state(path.parent), "fingerprint": "0123456789ab"})
    message = refusal(project, "long@same", "--from", "long")
    assert f"{phase}/checkpoints/step-{step:08d}/state.json: fingerprint: found 0123456789ab, expected {run.name}" in message
    assert not list((run.parents[1]).glob("long@same/.*"))
    assert not (run.parents[1] / "long@same" / run.name).exists()


def test_checkpoints_that_are_linked_from_another_disk_are_copied(project: Commands) -> None:
    checkpoints = run_of(project, "long") / "second" / "checkpoints"
    checkpoints.rename(project.folder / "disk")
    checkpoints.symlink_to(project.folder / "disk")
    (checkpoints.parent / "broken").symlink_to(project.folder / "nowhere")
    done = project.relm("continue", "long@same", "--from", "long")
    assert "phase second resumes after step 20" in done.stdout, done.stderr
    copied = run_of(project, "long@same") / "second" / "checkpoints"
    assert not copied.is_symlink()
    assert (copied / "step-00000020" / "model.safetensors").is_file()


def test_a_checkpoint_of_an_earlier_version_gets_its_machine(project: Commands) -> None:
    path = run_of(project, "long") / "second" / "checkpoints" / "step-00000020" / "state.json"
    state = read_state(path.parent)
    del state["machines"]
    path.write_text(json.dumps(state))
    assert project.relm("continue", "long@same", "--from", "long").returncode == 0
    copied = read_state((run_of(project, "long@same") / path.relative_to(run_of(project, "long"))).parent)
    assert copied == {**state, "machines": [{"after_step": 0, "machine": "cpu"}]}


def test_what_cannot_be_taken_over_is_refused_in_one_line(project: Commands) -> None:
    run = run_of(project, "long")
    assert "data, model or training differ" in refusal(project, "long@same", "--from", "tiny")
    assert "are the same run; `snakemake results/long@cpu` resumes it" in refusal(project, "long@cpu", "--from", "long")
    assert "has no checkpoint in work/runs/long@other" in refusal(project, "long@same", "--from", "long@other")
    assert "there is no machine 'sam'; did you mean same?" in refusal(project, "long@sam", "--from", "long")
    assert "long has begun already (work/runs/long/" in refusal(project, "long", "--from", "long@same")
    with run_lock(run / "second" / "lock"):
        assert "another process trains here already" in refusal(project, "long@same", "--from", "long")
    locks = project.folder / ".snakemake" / "locks"
    locks.mkdir(exist_ok=True)
    shutil.rmtree(project.folder / ".snakemake" / "relm-owners")
    (locks / "0.output.lock").write_text(f"{(run / 'second/model/model.safetensors').relative_to(project.folder)}\n")
    assert "long: Snakemake is working on it; stop it first" in refusal(project, "long@same", "--from", "long")
    assert not (run.parents[1] / "long@same").exists()


def test_a_finished_run_is_taken_over_to_be_evaluated_elsewhere(project: Commands) -> None:
    run = run_of(project, "long")
    shutil.copytree(run / "main" / "model", run / "second" / "model", dirs_exist_ok=True)
    done = project.relm("continue", "long@same", "--from", "long")
    assert "phase main is finished, phase second is finished" in done.stdout, done.stderr
    assert (run_of(project, "long@same") / "second" / "model" / "model.safetensors").exists()
