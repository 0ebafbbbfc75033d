"""The jobs that prepare data: a document says enough to do its job, and is short enough for a command."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.identity import DOCUMENTS_KEYS, digest, documents_identity, stored_identity
from relm.recipes.job_documents import choice_of_tokenizer, dataset_of_documents, objective_of_examples
from relm.recipes.jobs import LISTED_FILES, DocumentsJob, ExamplesJob, TokenizerJob
from relm.recipes.project import Project
from small_project import Commands


def job_of(dataset: Dataset, folder: Path, name: str = "letters") -> DocumentsJob:
    """Return the job of a dataset, as a plan decides it."""
    return DocumentsJob(documents_identity(dataset, None, folder), name, dataset, folder)


def as_passed(job: DocumentsJob, shard: str) -> dict[str, Any]:
    """Return the document as a command's words have it."""
    passed: dict[str, Any] = json.loads(canonical_json(job.passed_document(shard)))
    return passed


def test_the_document_of_every_shipped_dataset_says_how_its_files_are_read(checkout: Path, tmp_path: Path) -> None:
    datasets = {path: load_dataset(path) for path in sorted((checkout / "recipes" / "data").glob("*.yaml"))}
    assert datasets
    for path, dataset in datasets.items():
        if dataset.is_tokenized:  # its files are imported, and no documents are extracted
            continue
        job = job_of(dataset, tmp_path)
        for shard in job.shards:
            again = dataset_of_documents(as_passed(job, shard), Path(shard))
            for key in DOCUMENTS_KEYS:
                assert getattr(again, key) == getattr(dataset, key), (path, key)
            assert again.hub == dataset.hub
            if dataset.files:
                assert again.files[shard].sha256 == dataset.files[shard].identity
    assert digest(job.document) == job.key == job.folder.name.rpartition("-")[2]


def many_files(count: int, **keys: Any) -> Dataset:
    """Return a dataset of `count` files."""
    source = {"url": "https://example.org/x"}
    files = {f"{number}.x": {"sha256": f"{number:064x}", "size": 1, "sources": [source]} for number in range(count)}
    return Dataset.model_validate({"title": "L", "licence": "MIT", "language": "en", "files": files, **keys})


def test_a_long_list_of_files_is_cut_to_the_one_that_is_read_unless_the_names_of_all_decide_the_split(tmp_path: Path) -> None:
    listed = job_of(many_files(LISTED_FILES, format="json_lines"), tmp_path)
    assert listed.passed_document("3.x") == listed.document
    long = job_of(many_files(5000, format="json_lines", held_out_files=["7.x"]), tmp_path)
    passed = as_passed(long, "3.x")
    assert passed == {**long.document, "content": [["3.x", f"{3:064x}"]]}
    assert dataset_of_documents(passed, Path("3.x")).held_out_files == ["7.x"]
    texts = job_of(many_files(LISTED_FILES + 1, format="text_files"), tmp_path)
    assert texts.passed_document("3.x") == texts.document


def test_the_document_of_a_folder_is_short_and_follows_its_content(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(2000):
        (texts / f"a rather long name of text number {number}.txt").write_text(str(number))
    keys = {"title": "T", "licence": "MIT", "language": "en", "format": "text_files", "folder": str(texts)}
    dataset = Dataset.model_validate(keys)
    job = job_of(dataset, tmp_path / "work")
    assert len(canonical_json(job.document)) > 1 << 17, "more than the kernel takes as one argument"
    before = as_passed(job, "folder")
    assert before == {"revision": 1, "content": digest(job.document["content"]), "format": "text_files"}
    assert dataset_of_documents(before, texts).folder == str(texts)
    (texts / "one more.txt").write_text("more")
    assert as_passed(job_of(dataset, tmp_path / "work"), "folder")["content"] != before["content"]


CAUSAL = {"revision": 1, "objectives": ["causal"]}
MASKED = {"revision": 1, "objectives": ["masked"], "sequence_length": 8}


@pytest.mark.parametrize(
    ("read", "document", "message"),
    [
        (
            choice_of_tokenizer,
            {"train": "wordpiece"},
            "found None, this code computes revision 1 of the tokenizer",
        ),
        (choice_of_tokenizer, {"revision": 1, "tarin": "wordpiece"}, "tarin: unknown key; did you mean train"),
        (objective_of_examples, {"revision": 1}, "--job: objectives: expected a list of one objective, found None"),
        (objective_of_examples, {"revision": 1, "objectives": ["masked", "causal"]}, "expected a list of one objective"),
        (
            objective_of_examples,
            {"revision": 2, "objectives": ["causal"]},
            "revision: found 2, this code computes revision 1",
        ),
        (objective_of_examples, {**CAUSAL, "language": "ro"}, "--job: language: found ro, but these examples depend on None"),
        (objective_of_examples, {**CAUSAL, "sequence_length": 8}, "--job: sequence_length: found 8, but"),
        (objective_of_examples, {**CAUSAL, "causal": {"stride": 1}}, "--job: causal: found {'stride': 1}, but these examples"),
        (
            objective_of_examples,
            {**MASKED, "masked": {"probability": 0.3, "packing": "sentence_pairs", "whole_words": True}},
            "but these examples depend on {'packing': 'sentence_pairs'}; remove the",
        ),
        (
            lambda document: dataset_of_documents(document, Path()),
            {"revision": 1, "format": "wikitext", "content": [["a", "0"]], "smoke": "small"},
            "--job: smoke: unknown key",
        ),
        (
            lambda document: dataset_of_documents(document, Path()),
            {"revision": 1, "format": "wikitext"},
            "--job: content: expected",
        ),
        (
            lambda document: dataset_of_documents(document, Path()),
            {"revision": 1, "format": "wikitext", "content": [1, 2]},
            "--job: content: expected",
        ),
    ],
)
def test_a_document_that_is_none_is_refused_by_name(read: Any, document: dict[str, Any], message: str) -> None:
    with pytest.raises(RelmError) as caught:
        read(document)
    assert message in str(caught.value)


def test_the_document_of_every_shipped_recipe_describes_its_examples(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    for plan in map(Project().plan, Project().names()):
        for name, job in plan.examples_jobs.items():
            again = objective_of_examples(json.loads(canonical_json(job.document)))
            language = str(job.document.get("language", "en"))
            assert stored_identity(again, language) == stored_identity(plan.recipe.pretrain[name], plan.dataset.language)


def test_a_planned_recipe_has_its_jobs_found_without_reading_another(
    project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    found = Project()
    plan = found.plan("tiny")
    shutil.rmtree("recipes")
    assert found.find_job(DocumentsJob, plan.documents_job.key, "sample") is plan.documents_job
    assert found.find_job(TokenizerJob, plan.tokenizer_job.key) is plan.tokenizer_job
    assert found.find_job(ExamplesJob, next(iter(plan.examples_keys)), "sample") is plan.examples_jobs["main"]


def test_a_job_of_any_recipe_or_twin_is_found_by_only_its_key(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    for name in ("tiny", "smoke/tiny"):
        plan = Project().plan(name)
        found = Project().find_job(ExamplesJob, plan.examples_jobs["main"].key, "sample")
        assert (found.key, found.document) == (plan.examples_jobs["main"].key, plan.examples_jobs["main"].document)
    with pytest.raises(RelmError, match="no recipe makes documents with key 0123456789ab: was a recipe edited"):
        Project().find_job(DocumentsJob, "0123456789ab", "sample")
    with pytest.raises(RelmError, match="no recipe makes documents"):
        Project().find_job(DocumentsJob, plan.documents_job.key, "another")
