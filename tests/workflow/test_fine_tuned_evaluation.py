"""An evaluation by fine-tuning in the graph: two files are downloaded, and its figures are judged, shown and published."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from made_once import copy_of
from question_files import SAMPLE
from relm.artifact import sha256_of
from relm.cluster.bucket.run_files import list_files
from relm.recipes.project import Project
from run_products import list_unknown
from small_project import Commands

TEST = """
title: Five questions on a university
licence: CC-BY-SA-4.0
protocol: squad
squad: {{sequence_length: 64, doc_stride: 24, max_query_length: 16, batch_size: 4, epochs: 1, seeds: 2, learning_rate: 0.001}}
training_file: train.json
files:
  train.json: {{sha256: {train[0]}, size: {train[1]}, sources: [{{url: "http://127.0.0.1:9/train.json"}}]}}
  dev.json: {{sha256: {dev[0]}, size: {dev[1]}, sources: [{{url: "http://127.0.0.1:9/dev.json"}}]}}
"""
RECIPE = """
title: A BERT that answers
data: {dataset: sample}
tokenizer: {train: wordpiece, vocabulary_size: 400}
model: {architecture: bert, layers: 1, heads: 2, hidden_size: 32, positions: 64}
pretrain:
  main: {objective: masked, sequence_length: 32, global_batch_size: 4, steps: 2, optimizer: {learning_rate: 1e-3}}
evaluate: [answers]
run: {threads: 1, checkpoint_interval: 2, log_interval: 1}
expect:
  - metric: answers.f1
    value: 0.9
    tolerance: 0.01
    basis: none
    place: nowhere
    published_runs: 5
    noise: {standard_deviation: 0.002, runs: 5, source: five seeds}
  - {metric: answers.exact_match_std, value: 0.002, tolerance: 0.1, basis: none, place: nowhere}
"""


def write_test(project: Commands, dev: dict[str, Any]) -> None:
    """Write both files into the mirror, and the test's file."""
    facts, mirror = {}, project.folder / "mirror"
    for name, content in (("train", SAMPLE.read_text()), ("dev", json.dumps(dev))):
        path = mirror / f"{name}.json"
        path.write_text(content)
        facts[name] = sha256_of(path), path.stat().st_size
    folder = project.folder / "recipes" / "evaluations"
    folder.mkdir(exist_ok=True)
    (folder / "answers.yaml").write_text(TEST.format(**facts))


def first_paragraph() -> dict[str, Any]:
    """Return the sample's first paragraph with its two questions."""
    content: dict[str, Any] = json.loads(SAMPLE.read_text())
    paragraph = content["data"][0]["paragraphs"][0]
    content["data"] = [{"title": "x", "paragraphs": [paragraph]}]
    return content


@pytest.fixture(scope="module")
def answered(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """A copy of the finished project with a recipe that is evaluated by fine-tuning, run to its end."""
    return Commands(copy_of(tmp_path_factory, "answered", lambda folder: run_answered(finished_project, folder)))


def run_answered(finished: Commands, folder: Path) -> None:
    """Copy the finished project into an empty folder, and run the recipe there."""
    subprocess.run(["cp", "-a", f"{finished.folder}/.", str(folder)], check=True)
    project = Commands(folder)
    write_test(project, first_paragraph())
    (folder / "recipes" / "answering.yaml").write_text(RECIPE)
    assert project.jobs("results/answering")["download_test"] == 2
    done = project.snakemake("results/answering")
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_its_figures_are_those_of_both_files_and_all_seeds(answered: Commands) -> None:
    found = json.loads((answered.folder / "results" / "answering" / "eval" / "answers.json").read_text())
    mirror = answered.folder / "mirror"
    protocol, figures = found["protocol"], found["figures"]
    assert protocol["training_sha256"] == sha256_of(mirror / "train.json")
    assert protocol["file_sha256"] == sha256_of(mirror / "dev.json")
    assert (protocol["epochs"], protocol["sequence_length"]) == (1, 64)
    assert (figures["seeds"], figures["questions"]) == (2, 2)
    assert figures["f1"] == pytest.approx((figures["f1_0"] + figures["f1_1"]) / 2)
    steps = json.loads((answered.folder / "results" / "answering" / "provenance.json").read_text())["steps"]
    (evaluated,) = (step for step in steps if step["step"] == "evaluate")
    assert {"train.json", "dev.json"} <= {Path(file["path"]).name for file in evaluated["inputs"]}


@pytest.mark.full
def test_they_stand_in_the_report_the_card_and_the_verdict(answered: Commands) -> None:
    folder = answered.folder / "results" / "answering"
    figures = json.loads((folder / "eval" / "answers.json").read_text())["figures"]
    page, card = (folder / "report.html").read_text(), (folder / "README.md").read_text()
    for text in (page, card):
        assert "Exact match" in text
        assert f"{figures['f1']:.4f}" in text
        assert f"{figures['f1_std']:.4f}" in text
    assert "type: exact_match" in card
    assert "Five questions on a university" in card
    rows = {row["metric"]: row for row in json.loads((folder / "verify.json").read_text())["rows"]}
    assert rows["answers.f1"]["ours"] == figures["f1"]
    assert rows["answers.exact_match_std"]["ours"] == figures["exact_match_std"]
    assert rows["answers.f1"]["verdict"] == "not consistent"


@pytest.mark.full
def test_what_a_fine_tuning_goes_on_from_is_among_the_files_of_a_run(
    answered: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(answered.folder)
    plan = Project().plan("answering")
    (folder,) = (plan.run_folder / "eval" / "answers").glob("*/")
    listed = {path for path in list_files(plan).values() if path.is_relative_to(folder)}
    assert {path.relative_to(folder).as_posix() for path in listed} >= {
        *("examples/train.arrow", "examples/manifest.json"),
        *(f"seed-{seed}/{name}" for seed in (0, 1) for name in ("figures.json", "predictions.json")),
    }
    assert list_unknown(plan) == []


@pytest.mark.full
def test_it_runs_again_for_other_files_alone(answered: Commands) -> None:
    assert answered.jobs("results/answering") == {}
    content = first_paragraph()
    content["data"][0]["paragraphs"][0]["qas"].pop()
    write_test(answered, content)
    jobs = answered.jobs("results/answering")
    assert (jobs["download_test"], jobs["evaluate"]) == (1, 1)
    assert "pretrain" not in jobs
    write_test(answered, first_paragraph())


@pytest.mark.full
def test_the_smoke_twin_asks_less(answered: Commands) -> None:
    done = answered.snakemake("results/smoke/answering")
    assert done.returncode == 0, done.stdout
    found = json.loads((answered.folder / "results" / "smoke" / "answering" / "eval" / "answers.json").read_text())
    assert found["protocol"]["limit"] == 20
