"""Tasks of GLUE in the graph: a text, a pair with two development files and a score, from their downloads to the report.

The sentences are this project's own, in the formats of GLUE's files.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glue_files import EXAMPLES, write_parquet
from made_once import copy_of
from relm.artifact import sha256_of
from relm.cluster.bucket.run_files import list_files
from relm.recipes.project import Project
from run_products import list_unknown
from small_project import Commands

# Task -> its files, each beside the input that it is.
FILES = {
    "sst2": {"training_file": "sst2_train.parquet", "file": "sst2_dev.parquet"},
    "mnli": {
        "training_file": "mnli_train.parquet",
        "file": "mnli_matched.parquet",
        "mismatched_file": "mnli_mismatched.parquet",
    },
    "stsb": {"training_file": "stsb_train.parquet", "file": "stsb_dev.parquet"},
}
RECIPE = """
title: A BERT that classifies
data: {dataset: sample}
tokenizer: {train: wordpiece, vocabulary_size: 400}
model: {architecture: bert, layers: 1, heads: 2, hidden_size: 32, positions: 64}
pretrain:
  main:
    objective: masked
    sequence_length: 32
    global_batch_size: 4
    steps: 2
    optimizer: {learning_rate: 1e-3}
    masked: {packing: sentence_pairs}
evaluate: [small_sst2, small_mnli, small_stsb]
run: {threads: 1, checkpoint_interval: 2, log_interval: 1}
expect:
  - metric: small_mnli.accuracy_mismatched
    value: 0.9
    tolerance: 0.01
    basis: none
    place: nowhere
    published_runs: 5
    noise: {standard_deviation: 0.002, runs: 5, source: five seeds}
  - {metric: small_stsb.pearson_correlation, value: 0.9, tolerance: 0.1, basis: none, place: nowhere}
"""


def write_tests(project: Commands, **rows: Any) -> None:
    """Write all files into the mirror, and the tests' files.

    Args:
        rows: name of a file without its suffix -> its examples, where these are not all of the task.
    """
    folder, mirror = project.folder / "recipes" / "evaluations", project.folder / "mirror"
    folder.mkdir(exist_ok=True)
    for task, files in FILES.items():
        described, named = [], []
        for key, name in files.items():
            path = write_parquet(mirror / name, task, rows.get(Path(name).stem, EXAMPLES[task]))
            source = f'sources: [{{url: "http://127.0.0.1:9/{name}"}}]'
            described.append(f"  {name}: {{sha256: {sha256_of(path)}, size: {path.stat().st_size}, {source}}}")
            named += [] if key == "file" else [f"{key}: {name}"]
        options = f"{{task: {task}, sequence_length: 24, batch_size: 2, epochs: 2, seeds: 2, learning_rate: 0.001}}"
        lines = [f"title: A small {task}", "licence: CC0-1.0", "protocol: glue", f"glue: {options}", *named, "files:"]
        (folder / f"small_{task}.yaml").write_text("\n".join([*lines, *described]) + "\n")


@pytest.fixture(scope="module")
def classified(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """A copy of the finished project with a recipe that is evaluated on three tasks, run to its end."""
    return Commands(copy_of(tmp_path_factory, "classified", lambda folder: run_classified(finished_project, folder)))


def run_classified(finished: Commands, folder: Path) -> None:
    """Copy the finished project into an empty folder, and run the recipe there."""
    subprocess.run(["cp", "-a", f"{finished.folder}/.", str(folder)], check=True)
    project = Commands(folder)
    write_tests(project)
    (folder / "recipes" / "classifying.yaml").write_text(RECIPE)
    assert project.jobs("results/classifying")["download_test"] == 7
    done = project.snakemake("results/classifying")
    assert done.returncode == 0, done.stdout


def evaluation_of(project: Commands, task: str, name: str = "classifying") -> dict[str, Any]:
    """Return the published result of a task."""
    path = project.folder / "results" / name / "eval" / f"small_{task}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.full
def test_its_figures_are_those_of_all_files_and_seeds(classified: Commands) -> None:
    figures = {
        "sst2": {"accuracy"},
        "mnli": {"accuracy", "accuracy_mismatched"},
        "stsb": {"pearson_correlation", "spearman_correlation"},
    }
    for task, names in figures.items():
        found = evaluation_of(classified, task)
        for key, file in FILES[task].items():
            assert found["protocol"][f"{key.removesuffix('_file')}_sha256"] == sha256_of(classified.folder / "mirror" / file)
        assert (found["protocol"]["task"], found["protocol"]["epochs"]) == (task, 2)
        assert (found["figures"]["seeds"], found["figures"]["examples"]) == (2, len(EXAMPLES[task]))
        for name in names:
            each = [found["figures"][f"{name}_{seed}"] for seed in (0, 1)]
            assert found["figures"][name] == pytest.approx(sum(each) / 2)
    steps = json.loads((classified.folder / "results" / "classifying" / "provenance.json").read_text())["steps"]
    read = [{Path(file["path"]).name for file in step["inputs"]} for step in steps if step["step"] == "evaluate"]
    for files in FILES.values():
        assert any(set(files.values()) <= names for names in read)


@pytest.mark.full
def test_they_stand_in_the_report_the_card_and_the_verdict(classified: Commands) -> None:
    folder = classified.folder / "results" / "classifying"
    page, card = (folder / "report.html").read_text(), (folder / "README.md").read_text()
    mnli, stsb = (evaluation_of(classified, task)["figures"] for task in ("mnli", "stsb"))
    for text in (page, card):
        for name in ("Accuracy, mismatched", "Pearson correlation", "Spearman correlation"):
            assert name in text
        assert f"{stsb['pearson_correlation']:.4f}" in text
        assert f"{mnli['accuracy_mismatched_std']:.4f}" in text
    assert "type: pearsonr" in card
    rows = {row["metric"]: row for row in json.loads((folder / "verify.json").read_text())["rows"]}
    assert rows["small_mnli.accuracy_mismatched"]["ours"] == mnli["accuracy_mismatched"]
    assert rows["small_stsb.pearson_correlation"]["ours"] == stsb["pearson_correlation"]
    assert rows["small_mnli.accuracy_mismatched"]["verdict"] == "not consistent"


@pytest.mark.full
def test_what_a_fine_tuning_goes_on_from_is_among_the_files_of_a_run(
    classified: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(classified.folder)
    plan = Project().plan("classifying")
    (folder,) = (plan.run_folder / "eval" / "small_mnli").glob("*/")
    listed = {path for path in list_files(plan).values() if path.is_relative_to(folder)}
    assert {path.relative_to(folder).as_posix() for path in listed} >= {
        *("examples/train.arrow", "examples/manifest.json", "seed-0/glue/train.jsonl"),
        *(f"seed-{seed}/{name}" for seed in (0, 1) for name in ("figures.json", "predictions.json")),
    }
    assert list_unknown(plan) == []


@pytest.mark.full
def test_it_runs_again_for_other_files_alone(classified: Commands) -> None:
    assert classified.jobs("results/classifying") == {}
    write_tests(classified, mnli_mismatched=EXAMPLES["mnli"][:3])
    jobs = classified.jobs("results/classifying")
    assert (jobs["download_test"], jobs["evaluate"]) == (1, 1)
    assert "pretrain" not in jobs
    done = classified.snakemake("results/classifying")
    assert done.returncode == 0, done.stdout
    assert evaluation_of(classified, "mnli")["figures"]["examples_mismatched"] == 3
    write_tests(classified)


@pytest.mark.full
def test_the_smoke_twin_asks_less(classified: Commands) -> None:
    done = classified.snakemake("results/smoke/classifying")
    assert done.returncode == 0, done.stdout
    protocol = evaluation_of(classified, "stsb", "smoke/classifying")["protocol"]
    assert (protocol["limit"], protocol["batch_size"], protocol["seeds"]) == (20, 2, 2)
