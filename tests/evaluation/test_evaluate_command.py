"""The command of an evaluation writes the same bytes by its job and by its options, and refuses a job with faults."""

import json
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import sha256_of
from relm.cli import main
from relm.recipes.evaluation.evaluations import EVALUATIONS
from relm.recipes.project import Project
from small_project import Commands


def evaluate(evaluated: Any, output: Path, job: Any, *options: str) -> int:
    """Return the exit status of the command of the job's evaluation on the small model."""
    command = "samples" if isinstance(job, str) else EVALUATIONS[job["evaluation"]].command
    text = job if isinstance(job, str) else json.dumps(job)
    return main([command, "--job", text, "--model", str(evaluated.model), "--output", str(output), "--threads", "1", *options])


def test_a_job_and_its_options_make_the_same_bytes(evaluated: Any, tmp_path: Path) -> None:
    manifest = ["--manifest", str(evaluated.manifest)]
    job = {"evaluation": "random_windows", "context": 16, "batch_size": 2, "options": {"seed": 3}}
    assert evaluate(evaluated, tmp_path / "a.json", job, *manifest) == 0
    options = ["--context", "16", "--batch-size", "2", "--seed", "3", "--threads", "1", "--output", str(tmp_path / "b.json")]
    assert main(["random-windows", "--model", str(evaluated.model), *manifest, *options]) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    recorded = ["--job", json.dumps(job), "--model", str(evaluated.model), *manifest, "--output", str(tmp_path / "c.json")]
    assert main(["evaluate", *recorded]) == 0, "as a record of an earlier version has it"
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "c.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text())["protocol"]["seed"] == 3


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        ("{", [], "--job: not valid JSON"),
        ('{"evaluation": "held_in", "context": 16}', [], "evaluation: expected 'held_out', "),
        (
            '{"evaluation": "held_out", "context": 16}',
            [],
            "--job: describes held_out, and this is `relm samples`; pass it to `relm held-out`",
        ),
        ({"evaluation": "held_out"}, ["--manifest", "m.json"], "held_out depends on context; give it"),
        ({"evaluation": "samples"}, ["--seed", "3"], "--job: describes the evaluation completely; remove --seed"),
        (
            {"evaluation": "samples", "options": {"sed": 3}},
            [],
            "--job: options: 1 error\n  sed: unknown key; did you mean seed?",
        ),
        (
            {"revision": 1, "evaluation": "samples"},
            [],
            "--job: revision: found 1, this code computes revision 2 of the evaluation; rerun snakemake",
        ),
        (
            {
                "evaluation": "samples",
                "context": 16,
                "language": "ro",
                "phases": {"main": {"steps": 1, "global_batch_size": 1}},
            },
            [],
            "context: samples does not depend on it; remove it\n"
            "  language: samples does not depend on it; remove it\n"
            "  phases: samples does not depend on it; remove it\n",
        ),
        (
            {"evaluation": "held_out", "context": 16, "options": {"seed": 3}},
            ["--manifest", "m.json"],
            "--job: options: 1 error\n  seed: unknown key; known keys: none\n",
        ),
        ({"evaluation": "lm_eval", "harness_task": "x", "task_files": {"x.yaml": "0" * 64}}, [], "--task-folder is missing"),
    ],
)
def test_a_job_with_faults_is_refused(
    evaluated: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], job: Any, options: list[str], message: str
) -> None:
    assert evaluate(evaluated, tmp_path / "a.json", job, *options) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


def test_user_task_files_are_part_of_the_identity_and_are_checked(
    project: Commands, evaluated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    file = Path("recipes/harness/own.yaml")
    file.parent.mkdir()
    file.write_text("task: own")
    job = Project().plan("tiny").evaluation_identity("lm_eval_own")
    assert job["harness_task"] == "own"
    assert job["task_files"] == {"own.yaml": sha256_of(file)}
    file.write_text("task: other")
    tokenizer = ["--tokenizer", str(evaluated.tokenizer)]
    assert evaluate(evaluated, tmp_path / "a.json", job, "--task-folder", str(file.parent), "--trust-tasks", *tokenizer) == 1
    assert f"{file}: sha256 is {sha256_of(file)}" in capsys.readouterr().err
