"""Evaluations by fine-tuning in the graph, from the downloads of their files to the report: SQuAD, and three tasks of GLUE.

The sentences are this project's own, in the formats of the published files.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glue_files import EXAMPLES, write_parquet
from made_once import copy_of
from question_files import SAMPLE
from relm.artifact import sha256_of
from relm.cluster.bucket.run_files import list_files
from relm.recipes.project import Project
from run_products import list_unknown
from small_project import Commands

pytestmark = pytest.mark.full

# Evaluation -> its files by input, and its figures.
FILES = {
    "answers": {"training_file": "train.json", "file": "dev.json"},
    "small_sst2": {"training_file": "sst2_train.parquet", "file": "sst2_dev.parquet"},
    "small_mnli": {"training_file": "mnli_train.parquet", "file": "mnli.parquet", "mismatched_file": "mnli_mismatched.parquet"},
    "small_stsb": {"training_file": "stsb_train.parquet", "file": "stsb_dev.parquet"},
}
FIGURES = {
    "answers": {"exact_match", "f1"},
    "small_sst2": {"accuracy"},
    "small_mnli": {"accuracy", "accuracy_mismatched"},
    "small_stsb": {"pearson_correlation", "spearman_correlation"},
}
COMMON = "batch_size: 2, seeds: 2, learning_rate: 0.001"
RECIPE = """
title: A BERT that answers and classifies
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
evaluate: [answers, small_sst2, small_mnli, small_stsb]
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
  - {metric: answers.exact_match_std, value: 0.002, tolerance: 0.1, basis: none, place: nowhere}
"""


def questions(count: int = 2) -> str:
    """Return the sample's first paragraph with some of its questions."""
    content: dict[str, Any] = json.loads(SAMPLE.read_text())
    paragraph = content["data"][0]["paragraphs"][0]
    return json.dumps({**content, "data": [{"title": "x", "paragraphs": [{**paragraph, "qas": paragraph["qas"][:count]}]}]})


def write_tests(project: Commands, dev: str | None = None, mismatched: int | None = None) -> None:
    """Write all files into the mirror, and the tests' files.

    Args:
        dev: the questions of the development file, where these are not both of the first paragraph.
        mismatched: how many examples MNLI's second development file has, where it has not all.
    """
    folder, mirror = project.folder / "recipes" / "evaluations", project.folder / "mirror"
    folder.mkdir(exist_ok=True)
    for test, files in FILES.items():
        task, described, named = test.removeprefix("small_"), [], []
        for key, name in files.items():
            path = mirror / name
            if test == "answers":
                path.write_text(SAMPLE.read_text() if key == "training_file" else dev or questions())
            else:
                write_parquet(path, task, EXAMPLES[task][: mismatched if key == "mismatched_file" else None])
            source = f'sources: [{{url: "http://127.0.0.1:9/{name}"}}]'
            described.append(f"  {name}: {{sha256: {sha256_of(path)}, size: {path.stat().st_size}, {source}}}")
            named += [] if key == "file" else [f"{key}: {name}"]
        options = f"protocol: glue\nglue: {{task: {task}, sequence_length: 24, epochs: 2, {COMMON}}}"
        if test == "answers":
            windows = "sequence_length: 64, doc_stride: 24, max_query_length: 16"
            options = f"protocol: squad\nsquad: {{{windows}, epochs: 1, {COMMON}}}"
        lines = [f"title: A small {task}", "licence: CC-BY-SA-4.0", options, *named, "files:", *described]
        (folder / f"{test}.yaml").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def tuned(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """A copy of the finished project with a recipe that is evaluated by fine-tuning on four tests, run to its end."""
    return Commands(copy_of(tmp_path_factory, "fine_tuned", lambda folder: run_tuned(finished_project, folder)))


def run_tuned(finished: Commands, folder: Path) -> None:
    """Copy the finished project into an empty folder, and run the recipe there."""
    subprocess.run(["cp", "-a", f"{finished.folder}/.", str(folder)], check=True)
    project = Commands(folder)
    write_tests(project)
    (folder / "recipes" / "tuning.yaml").write_text(RECIPE)
    assert project.jobs("results/tuning")["download_test"] == 9
    done = project.snakemake("results/tuning")
    assert done.returncode == 0, done.stdout


def evaluation_of(project: Commands, test: str, name: str = "tuning") -> dict[str, Any]:
    """Return the published result of a test."""
    found: dict[str, Any] = json.loads((project.folder / "results" / name / "eval" / f"{test}.json").read_text())
    return found


@pytest.mark.parametrize("test", FILES)
def test_its_figures_are_those_of_all_files_and_seeds(test: str, tuned: Commands) -> None:
    found, files = evaluation_of(tuned, test), FILES[test]
    protocol, figures = found["protocol"], found["figures"]
    for key, file in files.items():
        hashed = {"training_file": "training_sha256", "mismatched_file": "mismatched_sha256", "file": "file_sha256"}[key]
        assert protocol[hashed] == sha256_of(tuned.folder / "mirror" / file)
    of_squad = test == "answers"
    assert (protocol["epochs"], protocol["sequence_length"]) == ((1, 64) if of_squad else (2, 24))
    assert figures["seeds"] == 2
    assert figures["questions" if of_squad else "examples"] == (2 if of_squad else len(EXAMPLES[protocol["task"]]))
    for name in FIGURES[test]:
        assert figures[name] == pytest.approx((figures[f"{name}_0"] + figures[f"{name}_1"]) / 2)
    steps = json.loads((tuned.folder / "results" / "tuning" / "provenance.json").read_text())["steps"]
    read = [{Path(file["path"]).name for file in step["inputs"]} for step in steps if step["step"] == "evaluate"]
    assert any(set(files.values()) <= names for names in read)


def test_they_stand_in_the_report_the_card_and_the_verdict(tuned: Commands) -> None:
    folder = tuned.folder / "results" / "tuning"
    page, card = (folder / "report.html").read_text(), (folder / "README.md").read_text()
    squad, mnli, stsb = (evaluation_of(tuned, test)["figures"] for test in ("answers", "small_mnli", "small_stsb"))
    shown = ["Exact match", "Accuracy, mismatched", "Pearson correlation", "Spearman correlation"]
    shown += [f"{figure:.4f}" for figure in (squad["f1"], squad["f1_std"], stsb["pearson_correlation"])]
    for text in (page, card):
        assert [words for words in [*shown, f"{mnli['accuracy_mismatched_std']:.4f}"] if words not in text] == []
    assert [words for words in ("type: exact_match", "type: pearsonr", "A small answers") if words not in card] == []
    rows = {row["metric"]: row for row in json.loads((folder / "verify.json").read_text())["rows"]}
    assert rows["answers.exact_match_std"]["ours"] == squad["exact_match_std"]
    assert rows["small_mnli.accuracy_mismatched"]["ours"] == mnli["accuracy_mismatched"]
    assert rows["small_stsb.pearson_correlation"]["ours"] == stsb["pearson_correlation"]
    assert rows["small_mnli.accuracy_mismatched"]["verdict"] == "not consistent"


@pytest.mark.parametrize(("test", "also"), [("answers", []), ("small_mnli", ["seed-0/glue/train.jsonl"])])
def test_what_a_fine_tuning_goes_on_from_is_among_the_files_of_a_run(
    test: str, also: list[str], tuned: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tuned.folder)
    plan = Project().plan("tuning")
    (folder,) = (plan.run_folder / "eval" / test).glob("*/")
    listed = {path for path in list_files(plan).values() if path.is_relative_to(folder)}
    assert {path.relative_to(folder).as_posix() for path in listed} >= {
        *("examples/train.arrow", "examples/manifest.json", *also),
        *(f"seed-{seed}/{name}" for seed in (0, 1) for name in ("figures.json", "predictions.json")),
    }
    assert list_unknown(plan) == []


def test_it_runs_again_only_for_other_files(tuned: Commands) -> None:
    assert tuned.jobs("results/tuning") == {}
    for changed in ({"dev": questions(1)}, {"mismatched": 3}):
        write_tests(tuned, **changed)
        jobs = tuned.jobs("results/tuning")
        assert (jobs["download_test"], jobs["evaluate"]) == (1, 1)
        assert "pretrain" not in jobs
    done = tuned.snakemake("results/tuning")
    assert done.returncode == 0, done.stdout
    assert evaluation_of(tuned, "small_mnli")["figures"]["examples_mismatched"] == 3
    write_tests(tuned)


def test_the_smoke_twin_asks_less(tuned: Commands) -> None:
    done = tuned.snakemake("results/smoke/tuning")
    assert done.returncode == 0, done.stdout
    protocols = [evaluation_of(tuned, test, "smoke/tuning")["protocol"] for test in FILES]
    assert [(each["limit"], each["seeds"]) for each in protocols] == [(20, 2)] * len(FILES)
