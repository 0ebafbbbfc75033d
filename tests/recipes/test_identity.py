"""Fingerprints: what changes them, what does not, and golden values that no release may change."""

from dataclasses import replace
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.identity import examples_identity
from relm.recipes.job_documents import dataset_of_documents
from relm.recipes.jobs import DocumentsJob
from relm.recipes.objectives import Objective
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe

DATASET = {
    "title": "Letters",
    "licence": "CC0-1.0",
    "language": "en",
    "format": "mediawiki_xml",
    "files": {"a.xml": {"sha256": "0" * 64, "size": 3, "sources": [{"url": "https://example.org/a.xml"}]}},
}
RECIPE = {
    "title": "A test",
    "data": {"dataset": "letters"},
    "tokenizer": {"train": "byte_level_bpe", "vocabulary_size": 300},
    "model": {"architecture": "gpt2", "layers": 1, "heads": 2, "hidden_size": 8, "positions": 16},
    "pretrain": {
        "main": {
            "objective": "causal",
            "sequence_length": 16,
            "global_batch_size": 2,
            "steps": 5,
            "optimizer": {"learning_rate": 1e-3},
        }
    },
}


def plan(recipe: dict | None = None, dataset: dict | None = None) -> Plan:
    made = Recipe.model_validate({**RECIPE, **(recipe or {})})
    return Plan("test", made, Dataset.model_validate({**DATASET, **(dataset or {})}), None, None)


def test_fingerprints_of_a_literal_recipe_never_change() -> None:
    here = plan()
    assert [here.documents_job.key, here.tokenizer_job.key, *here.examples_keys, here.fingerprint] == GOLDEN


GOLDEN = ["e29af7dbe769", "168d5076514e", "e5bedf164947", "0a7827d19fa3"]


@pytest.mark.parametrize(
    "change",
    [
        {"title": "Other words"},
        {"run": {"threads": 7, "micro_batch_size": 1, "checkpoint_interval": 3}},
        {"evaluate": ["held_out"], "masked_lm": {"seed": 3}},
        {"deviations": ["None."]},
        {"seed": 0},
        {"pretrain": {"main": {**RECIPE["pretrain"]["main"], "precision": "float32"}}},
        {"expect": [{"metric": "held_out.x", "value": 1, "tolerance": 1, "basis": "b", "place": "p"}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_where_it_runs_and_its_descriptions_keep_the_fingerprint(change: dict) -> None:
    assert plan(change).fingerprint == plan().fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"model": {**RECIPE["model"], "layers": 2}},
        {"model": {**RECIPE["model"], "dropout": 0.0}},
        {"pretrain": {"main": {**RECIPE["pretrain"]["main"], "steps": 6}}},
        {"pretrain": {"main": {**RECIPE["pretrain"]["main"], "precision": "bfloat16"}}},
        {"pretrain": {"first": RECIPE["pretrain"]["main"]}},
        {"tokenizer": {**RECIPE["tokenizer"], "vocabulary_size": 301}},
        {"data": {"dataset": "letters", "documents": 3}},
    ],
    ids=str,
)
def test_what_it_means_changes_the_fingerprint(change: dict) -> None:
    assert plan(change).fingerprint != plan().fingerprint


def test_the_order_of_phases_is_part_of_the_meaning() -> None:
    main = RECIPE["pretrain"]["main"]
    one, two = ({"pretrain": {"a": main, "b": main}}, {"pretrain": {"b": main, "a": main}})
    assert plan(one).fingerprint != plan(two).fingerprint


def test_a_new_mirror_or_licence_keeps_the_documents_and_a_new_hash_does_not() -> None:
    file = DATASET["files"]["a.xml"]
    mirrored = {"files": {"a.xml": {**file, "sources": [{"npm": "a@1.0.0", "member": "b"}]}}, "licence": "MIT"}
    assert plan(dataset=mirrored).documents_job.key == plan().documents_job.key
    assert plan(dataset={"files": {"a.xml": {**file, "sha256": "1" * 64}}}).documents_job.key != plan().documents_job.key
    assert plan(dataset={"held_out_one_in": 7}).documents_job.key != plan().documents_job.key


def test_a_revision_of_a_format_changes_only_its_own_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    def documents_of(format: str) -> DocumentsJob:
        return plan(dataset={"format": format}).documents_job

    dump, lines = documents_of("mediawiki_xml").key, documents_of("text_lines").key
    now = FORMATS["mediawiki_xml"]
    monkeypatch.setitem(FORMATS._declarations, now.name, replace(now, revision=now.revision + 1))
    assert documents_of("text_lines").key == lines
    raised = documents_of("mediawiki_xml")
    assert raised.key != dump
    assert dataset_of_documents(raised.document, Path("unused")).format == "mediawiki_xml"
    with pytest.raises(RelmError, match=f"revision: found 1, this code computes revision {now.revision + 1} of the documents"):
        dataset_of_documents({**raised.document, "revision": 1}, Path("unused"))


def folder_plan(folder: Path, work: Path) -> Plan:
    dataset = {key: DATASET[key] for key in ("title", "licence", "language")} | {"format": "text_files", "folder": str(folder)}
    return Plan("test", Recipe.model_validate(RECIPE), Dataset.model_validate(dataset), None, None, work)


def test_a_folder_is_known_only_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_DATA_FOLDERS", str(tmp_path))
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "b.txt").write_text("beta")
    (texts / "a.txt").write_text("alpha")
    before = folder_plan(texts, tmp_path / "work").documents_job.key
    moved = texts.rename(tmp_path / "moved")
    (moved / "a.txt").touch()
    assert folder_plan(moved, tmp_path / "work").documents_job.key == before
    (moved / "a.txt").write_text("alphA")
    changed = folder_plan(moved, tmp_path / "work").documents_job.key
    assert changed != before
    (moved / "c.txt").write_text("")
    assert folder_plan(moved, tmp_path / "work").documents_job.key not in (before, changed)


def test_an_absent_or_empty_folder_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_DATA_FOLDERS", str(tmp_path))
    with pytest.raises(RelmError, match="nowhere: not a folder"):
        _ = folder_plan(tmp_path / "nowhere", tmp_path).documents_job.key
    (tmp_path / "empty").mkdir()
    with pytest.raises(RelmError, match=r"empty: no file matches `pattern: \*\*/\*.txt`"):
        _ = folder_plan(tmp_path / "empty", tmp_path).documents_job.key


def test_golden_fingerprints_of_the_shipped_recipes(checkout: Path) -> None:
    project = Project(checkout)
    plans = {name: project.plan(name) for name in project.names()}
    assert {name: plan.fingerprint for name, plan in plans.items()} == SHIPPED


# An edit here says: runs of this recipe made before can no longer be compared with runs made after.
SHIPPED = {
    "bert_large_wikitext103_v3-8_bf16": "913a5855838e",
    "bert_large_wikitext103_v3-8_fp32": "4e821a8582f7",
    "mt5_base_romanian_diacritics_v3-8": "a112d5d642e8",
    "roberta_base_v3-8": "62e9679cc0a3",
    "roberta_base_v3-8_as_published": "3185d6116d39",
    "quickstart": "4a64c1e47a07",
    "shakespeare_char": "13d525f2996c",
    "shakespeare_char_gpu": "94c0eb2c208e",
    "stories260k": "a58c85906eec",
    "stories260k_scaled": "a46042c8bc41",
    "modded_nanogpt_adamw": "4d706bd78758",
    "modded_nanogpt_muon": "144d4c39bf45",
    "defects_causal": "86ae94a15930",
    "defects_empty_second": "00ea275fb9d7",
    "defects_masked": "5e2da27c0c3a",
    "defects_not_reduced": "aecada9db194",
    "defects_padding_scored": "afb0f0517914",
    "defects_pairs": "f26c5fc2777f",
    "defects_rate_in_eighths": "b6f908016afb",
    "defects_restored": "26f6fd720dde",
    "defects_unk_for_mask": "f413e05b6472",
    "defects_words_in_part": "ae0d42905d22",
    "bert_base_pod16": "e1143196d2f3",
    "bert_large_pod16": "621dc84b0934",
    "bert_large_pod64": "435927433ce4",
    "bert_tiny_ipu": "4c0fe83c91ea",
    "gpt2_124m_fineweb10b": "dd5df56976e5",
    "gpt2_124m_openwebtext": "beb698778220",
    "gpt2_large_1024_pod16": "787a59d68d68",
    "gpt2_large_1024_pod16_generated": "33ee9a3b5a40",
    "gpt2_large_512_pod16": "e55b3b445179",
    "gpt2_large_512_pod16_generated": "d6fec9f64835",
    "gpt2_large_poprun_pod64": "62fc98470ca9",
    "gpt2_large_poprun_pod64_generated": "f792d5541263",
    "gpt2_medium_pod16": "ecb60724cac5",
    "gpt2_medium_pod16_generated": "e9bf53530f83",
    "gpt2_small_pod16": "bcbccb3b90dd",
    "gpt2_small_pod16_generated": "b9f4a46f7f64",
}


def test_the_language_is_part_of_what_depends_on_it() -> None:
    def key(language: str, **phase: object) -> dict:
        objective = Objective.model_validate({"sequence_length": 8, **phase})
        return examples_identity({}, {}, objective, language)

    assert key("en", objective="causal") == key("ro", objective="causal")
    for phase in ({"objective": "seq2seq"}, {"objective": "masked"}):
        assert key("en", **phase) != key("ro", **phase)
    lines = {"objective": "masked", "masked": {"sentences": "lines"}}
    assert key("en", **lines) == key("ro", **lines)
