"""Evaluations in the graph: on published files, before and after, of the authors' weights, and one that fails."""

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from made_once import copy_of
from relm.artifact import sha256_of, write_sidecar
from relm.errors import RelmError
from relm.recipes.plan import BEFORE, REFERENCE, TRAINED
from relm.recipes.project import Project
from relm.replay.segment import reproduce
from small_project import Commands

TEST = """
title: {title}
licence: CC0-1.0
protocol: {protocol}
files:
  {file}:
    sha256: {sha256}
    size: {size}
    sources: [{{url: "http://127.0.0.1:9/{file}"}}]
"""
TEXT = " = A river = \n The river @-@ bed , which is dry in summer , lies in the north . It is 1 @,@ 200 metres long . \n" * 5
PASSAGES = [
    "The river runs through the town, and the town has its name from the river",
    "He was born in the north, and he died in the north",
    "It has a church, a school and a bridge; nobody knows who built the bridge",
]
MODEL = "title: What {name} gave\nlicence: CC0-1.0\nfolder: {folder}\nweights: true\n"
TUNED = """
extends: tiny
init_from: start
expect_reference: start
pretrain: {main: {steps: 6, schedule: {warmup_steps: 1}}}
evaluate: [held_out, river, passages, samples]
expect:
  - {metric: river.perplexity_per_token, value: 100, tolerance: 50, basis: none, place: nowhere}
"""


def add_test(project: Commands, name: str, protocol: str, file: str, content: str) -> None:
    path = project.folder / "mirror" / file
    path.write_text(content, encoding="utf-8")
    folder = project.folder / "recipes" / "evaluations"
    folder.mkdir(exist_ok=True)
    spec = TEST.format(title=name, protocol=protocol, file=file, sha256=sha256_of(path), size=path.stat().st_size)
    (folder / f"{name}.yaml").write_text(spec)


def figures(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())["figures"])


@pytest.fixture(scope="module")
def tuned(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """A copy of the finished project with a recipe that goes on from the finished model, run to its end."""
    return Commands(copy_of(tmp_path_factory, "tuned", lambda folder: run_tuned(finished_project, folder)))


def run_tuned(finished: Commands, folder: Path) -> None:
    """Copy the finished project into an empty folder, and run the recipe `tuned` there."""
    subprocess.run(["cp", "-a", f"{finished.folder}/.", str(folder)], check=True)
    project = Commands(folder)
    shutil.copytree(folder / "results" / "tiny", folder / "mine")
    (folder / "recipes" / "models" / "start.yaml").write_text(MODEL.format(name="tiny", folder="mine"))
    add_test(project, "river", "perplexity", "river.txt", TEXT)
    add_test(project, "passages", "lambada", "passages.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in PASSAGES))
    (folder / "recipes" / "tuned.yaml").write_text(TUNED)
    done = project.snakemake("results/tuned")
    assert done.returncode == 0, done.stdout


def test_figures_before_and_after_are_shown_together(tuned: Commands) -> None:
    folder = tuned.folder / "results" / "tuned"
    assert {path.name for path in (folder / "eval" / "before").iterdir()} == {"held_out.json", "river.json", "passages.json"}
    for task in ("held_out", "river", "passages"):
        before, after = (
            json.loads((folder / "eval" / "before" / f"{task}.json").read_text()),
            json.loads((folder / "eval" / f"{task}.json").read_text()),
        )
        assert before["protocol"] == after["protocol"], "the same protocol, or they could not be compared"
        assert before["model_sha256"] == sha256_of(tuned.folder / "mine" / "model.safetensors")
        assert after["model_sha256"] == sha256_of(folder / "model.safetensors")
    old, new = figures(folder / "eval/before/river.json"), figures(folder / "eval/river.json")
    assert old["nats_per_token"] != new["nats_per_token"]
    page = (folder / "report.html").read_text()
    assert f">{old['perplexity_per_token']:.2f}<" in page
    assert f">{new['perplexity_per_token']:.2f}<" in page
    assert '<th class="number">before</th>' in page
    assert "| before |" in (folder / "README.md").read_text()


@pytest.mark.full
def test_a_test_that_is_recorded_at_its_first_download_is_evaluated_and_its_record_compared(
    tuned: Commands, tmp_path: Path
) -> None:
    subprocess.run(["cp", "-a", f"{tuned.folder}/.", str(tmp_path)], check=True)
    project = Commands(tmp_path)
    rows = [
        {"goal": f"To cross river {n}", "sol1": "take the bridge.", "sol2": "take the church.", "label": 0} for n in range(3)
    ]
    add_test(project, "goals", "multiple_choice", "goals.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    spec = tmp_path / "recipes" / "evaluations" / "goals.yaml"
    unpinned = re.sub("sha256: .*\n *size: .*", "sha256: first_download\n    at_most: 100000", spec.read_text())
    spec.write_text(unpinned + "multiple_choice: {format: piqa}\n")
    recipe = tmp_path / "recipes" / "tuned.yaml"
    recipe.write_text(recipe.read_text().replace("samples]", "samples, goals]"))
    done = project.snakemake("results/tuned")
    assert done.returncode == 0, done.stdout
    result = json.loads((tmp_path / "results" / "tuned" / "eval" / "goals.json").read_text())
    assert result["figures"]["examples"] == 3
    assert result["protocol"]["file_sha256"] == sha256_of(tmp_path / "mirror" / "goals.jsonl")
    assert project.jobs("results/tuned") == {}
    (record,) = tmp_path.glob("work/downloads/evaluations/goals/*/goals.jsonl.first_download.json")
    download = record.with_name("goals.jsonl")
    download.unlink()
    with open(tmp_path / "mirror" / "goals.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(rows[0]) + "\n")
    done = project.snakemake(str(download.relative_to(tmp_path)))
    assert done.returncode != 0
    assert "first download" in done.stdout


def test_what_is_evaluated_is_not_evaluated_again(tuned: Commands) -> None:
    assert tuned.jobs("results/tuned") == {}


def test_the_steps_of_both_are_in_the_provenance(tuned: Commands) -> None:
    steps = json.loads((tuned.folder / "results" / "tuned" / "provenance.json").read_text())["steps"]
    commands = [step["argv"] for step in steps if step["step"] == "evaluate"]
    evaluated = [json.loads(argv[argv.index("--job") + 1])["evaluation"] for argv in commands]
    for evaluation in ("held_out", "perplexity", "lambada"):
        assert evaluated.count(evaluation) == 2, evaluation


def test_weights_of_the_authors_are_judged_by_the_same_code_and_nothing_is_trained(tuned: Commands) -> None:
    jobs = tuned.jobs("results/reference/tuned")
    assert "pretrain" not in jobs
    assert jobs["evaluate"] == 3
    done = tuned.snakemake("results/reference/tuned")
    assert done.returncode == 0, done.stdout
    folder = tuned.folder / "results" / "reference" / "tuned"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.name[0] != "."} == {
        *("README.md", "verify.json"),
        *("eval/held_out.json", "eval/river.json", "eval/passages.json"),
    }
    before = tuned.folder / "results" / "tuned" / "eval" / "before"
    for task in ("held_out", "river", "passages"):
        assert figures(folder / "eval" / f"{task}.json") == figures(before / f"{task}.json"), "the same weights"
    verdict = json.loads((folder / "verify.json").read_text())
    assert verdict["rows"][0]["ours"] == figures(before / "river.json")["perplexity_per_token"]
    page = (folder / "README.md").read_text()
    assert "What tiny gave" in page
    assert verdict["sentence"] in page
    assert tuned.jobs("results/reference/tuned") == {}


def test_figures_of_another_file_are_made_again_without_snakemakes_records(tuned: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    subprocess.run(["cp", "-a", str(tuned.folder), str(folder)], check=True)
    project = Commands(folder)
    shutil.rmtree(folder / ".snakemake")
    add_test(project, "river", "perplexity", "river.txt", TEXT.replace("summer", "winter"))
    with contextlib.chdir(folder):
        targets = [str(Project().plan("tuned").evaluations(of)["river"]) for of in (TRAINED, BEFORE)]
    assert project.jobs(*targets) == {"download_test": 1, "evaluate": 2}


def test_figures_of_other_weights_have_another_path(tuned: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("recipes", "mirror", "mine"):
        shutil.copytree(tuned.folder / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    shutil.copytree("mine", "others")
    config = Path("others/config.json")
    config.write_text(config.read_text() + " ")
    Path("recipes/models/others.yaml").write_text(MODEL.format(name="others", folder="others"))
    recipe = Path("recipes/tuned.yaml")
    before = Project().plan("tuned")
    paths = {before.verdict(REFERENCE), *before.evaluations(REFERENCE).values()}
    recipe.write_text(recipe.read_text().replace("expect_reference: start", "expect_reference: others"))
    after = Project().plan("tuned")
    assert after.run_folder == before.run_folder
    assert not paths & {after.verdict(REFERENCE), *after.evaluations(REFERENCE).values()}


def test_a_segment_is_not_replayed_from_forged_starting_weights(
    tuned: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    subprocess.run(["cp", "-a", str(tuned.folder), str(folder)], check=True)
    (configuration,) = folder.glob("work/models/start-*/config.json")
    configuration.write_text(configuration.read_text().replace("{", "{ ", 1))
    write_sidecar(configuration)
    monkeypatch.chdir(folder)
    with pytest.raises(RelmError, match=r"models/start-.*/config.json: sha256 is .*, the recipe expects "):
        reproduce(Project(), Path("results/tuned"), None, 0, None, {})


def test_without_the_authors_weights_there_is_no_reference(tuned: Commands) -> None:
    done = tuned.snakemake("results/reference/tiny")
    assert done.returncode != 0
    assert "recipe tiny names no weights of its authors; set expect_reference" in done.stdout


def test_an_evaluation_that_fails_leaves_the_others_and_is_made_up_for(tuned: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    subprocess.run(["cp", "-a", str(tuned.folder), str(folder)], check=True)
    project = Commands(folder)
    add_test(project, "brook", "perplexity", "brook.txt", TEXT[:200])
    right = (folder / "mirror" / "brook.txt").read_text()
    (folder / "mirror" / "brook.txt").write_text(right.replace("summer", "winter"))
    recipe = (folder / "recipes" / "tuned.yaml").read_text()
    (folder / "recipes" / "tuned.yaml").write_text(
        recipe.replace("[held_out, river, passages, samples]", "[brook, river, held_out]")
    )
    (run,) = folder.glob("work/runs/tuned/*/eval")
    for path in [*run.glob("*/river*"), *run.glob("*/held_out*")]:
        path.unlink()
    done = project.snakemake("results/tuned")
    assert done.returncode != 0
    assert "brook.txt" in done.stdout
    assert "sha256" in done.stdout
    assert {path.stem for path in run.glob("*/*.json")} >= {"river", "held_out"}
    assert not list(run.glob("*/brook.json"))
    (folder / "mirror" / "brook.txt").write_text(right)
    shown = project.snakemake("results/tuned", "--dry-run").stdout
    assert set(re.findall(r"^  evaluate (.*?)  ", shown, re.MULTILINE)) == {"brook", "before brook"}


def test_an_edited_protocol_evaluates_again_and_trains_nothing(tuned: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    subprocess.run(["cp", "-a", str(tuned.folder), str(folder)], check=True)
    with open(folder / "recipes" / "evaluations" / "river.yaml", "a", encoding="utf-8") as file:
        file.write("perplexity: {stride: 8}\n")
    jobs = Commands(folder).jobs("results/tuned")
    assert jobs["evaluate"] == 2, "before and after"
    assert "pretrain" not in jobs


def test_a_smoke_twin_evaluates_a_few_examples_of_the_same_tests(tuned: Commands) -> None:
    shown = tuned.snakemake("results/smoke/tuned", "--dry-run", "--printshellcmds").stdout
    commands = [line for line in shown.splitlines() if '"evaluation":"perplexity"' in line or '"evaluation":"lambada"' in line]
    assert len(commands) == 2, "there is nothing before: a twin starts with random weights"
    assert all("--limit 20" in command for command in commands)


def test_a_task_of_the_harness_is_one_job(project: Commands) -> None:
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("[held_out, samples]", '["lm_eval:hellaswag"]'))
    shown = project.snakemake("results/tiny", "--dry-run", "--printshellcmds").stdout
    (command,) = [line for line in shown.splitlines() if "relm harness" in line]
    assert '"evaluation":"lm_eval","harness_task":"hellaswag"' in command
    assert re.search("/eval/[0-9a-f]{12}/lm_eval_hellaswag.json ", command)
