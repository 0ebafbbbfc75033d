"""A recipe that removes duplicates and documents with a test's words builds its tokenizer and examples without them."""

import json
from pathlib import Path

import pytest

from relm.artifact import read_sidecar, sha256_of
from relm.corpus.documents import read_documents
from relm.plan.data_jobs import list_removed
from relm.recipes.jobs import KeptDocumentsJob
from relm.recipes.project import Project
from small_project import Commands, make_project
from workflow.test_evaluations import PASSAGES, add_test

DATASET = """
title: Sentences
licence: CC0-1.0
language: en
format: json_lines
held_out_one_in: 4
files:
  texts.jsonl:
    sha256: '{sha256}'
    size: {size}
    sources: [{{url: "http://127.0.0.1:9/texts.jsonl"}}]
"""
RECIPE = """
extends: tiny
data: {dataset: texts, remove: {duplicates: true, tests: [passages]}}
tokenizer: {vocabulary_size: 270}
"""


@pytest.fixture
def project(tmp_path: Path) -> Commands:
    project = make_project(tmp_path)
    texts = [f"This is text number {number}, and no other text has this number." for number in range(60)]
    texts += [text.upper() for text in texts[10:15]] + [f"Before. {PASSAGES[0]}. After."]
    path = tmp_path / "mirror" / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dataset = DATASET.format(sha256=sha256_of(path), size=path.stat().st_size)
    (tmp_path / "recipes" / "data" / "texts.yaml").write_text(dataset)
    (tmp_path / "recipes" / "unique.yaml").write_text(RECIPE)
    add_test(project, "passages", "lambada", "passages.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in PASSAGES))
    return project


def test_tokenizer_and_examples_are_made_without_removed_documents(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    plan = Project().plan("unique")
    done = project.snakemake(str(plan.manifest("main")))
    assert done.returncode == 0, done.stdout
    removed = read_sidecar(plan.kept_job.documents("texts.jsonl", "train").with_name("removed.jsonl"))
    assert removed["documents"] == 66
    assert removed["removed"] == {"duplicate": 5, "passages": 1}
    kept = {split: list(read_documents(plan.kept_job.documents("texts.jsonl", split))) for split in ("train", "held_out")}
    texts = [" ".join(document.text.lower().split()) for documents in kept.values() for document in documents]
    assert len(texts) == len(set(texts)) == 60
    assert not any(PASSAGES[0].lower() in text for text in texts)
    manifest = json.loads(plan.manifest("main").read_text())
    assert sum(split["documents"] for split in manifest["splits"].values()) == 60
    assert plan.tokenizer_job.document["documents"] == plan.kept_job.key
    assert project.jobs(str(plan.manifest("main"))) == {}


def test_a_key_that_removes_nothing_or_names_no_test_is_refused(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    recipe = project.folder / "recipes" / "unique.yaml"
    for remove, words in [
        ("{}", "data.remove: removes nothing; set duplicates: true, name tests, or remove it"),
        ("{tests: [pasages]}", "data.remove.tests: there is no evaluation 'pasages'"),
    ]:
        recipe.write_text(RECIPE.replace("{duplicates: true, tests: [passages]}", remove))
        assert words in Project().faults()[0]


def test_the_command_has_the_tests_with_their_keys(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    job = Project().plan("unique").kept_job
    assert isinstance(job, KeptDocumentsJob)
    words = list_removed(job).command()
    assert words[1:5] == ["--duplicates", "--test", "passages", "lambada"]
    assert words[6] == "text"
