"""The data's way for objectives other than causal, through the rules: documents, tokenizer, tables, manifest."""

import os
from pathlib import Path

import pytest

from relm.artifact import read_json
from relm.plan import Project
from small_project import Commands

PHASE = "global_batch_size: 4, steps: 6, optimizer: {learning_rate: 1e-3}"
RECIPES = {
    "masked": f"""
title: Pairs of sentences with hidden words
data: {{dataset: sample}}
tokenizer: {{train: wordpiece, vocabulary_size: 600, lower_case: true}}
model: {{architecture: bert, layers: 1, heads: 2, hidden_size: 32, positions: 32}}
pretrain:
  short: {{objective: masked, sequence_length: 16, masked: {{packing: sentence_pairs, whole_words: true}}, {PHASE}}}
  main: {{objective: masked, sequence_length: 32, masked: {{packing: sentence_pairs, whole_words: true}}, {PHASE}}}
run: {{threads: 1, checkpoint_interval: 3, micro_batch_size: 2, log_interval: 2}}
""",
}


@pytest.fixture
def objectives(project: Commands, monkeypatch: pytest.MonkeyPatch) -> tuple[Commands, Project]:
    for name, text in RECIPES.items():
        (project.folder / "recipes" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(project.folder)
    return project, Project()


@pytest.mark.parametrize(("name", "phase"), [("masked", "main")])
def test_a_table_and_its_manifest_are_made_by_the_rules(objectives, name: str, phase: str) -> None:
    commands, recipes = objectives
    manifest = recipes.plan(name).manifest(phase)
    done = commands.snakemake(str(manifest))
    assert done.returncode == 0, done.stdout
    content = read_json(manifest)
    assert content["objective"] == name
    assert content["splits"]["train"]["examples"] > 10
    assert (manifest.parent / "croissant.json").exists()
    assert commands.jobs(str(manifest)) == {}
    os.utime(manifest.parent / "sample.xml.train.arrow")
    assert commands.jobs(str(manifest)) == {}


def test_each_phase_has_the_examples_of_its_length(objectives) -> None:
    plan = objectives[1].plan("masked")
    assert plan.manifest("short") != plan.manifest("main")
    assert list(plan.examples_keys.values()) == ["short", "main"]


def test_what_is_drawn_while_reading_shares_the_stored_examples(objectives) -> None:
    folder: Path = objectives[0].folder
    for name, masked in {"more": "{packing: sentence_pairs, probability: 0.2}", "other": "{packing: full_sentences}"}.items():
        (folder / "recipes" / f"{name}.yaml").write_text(f"extends: masked\npretrain: {{main: {{masked: {masked}}}}}\n")
    masked, more, other = (objectives[1].plan(name).manifest("main") for name in ("masked", "more", "other"))
    assert more == masked
    assert other != masked


def test_a_masked_recipe_trains_through_both_its_phases(objectives) -> None:
    commands, recipes = objectives
    done = commands.snakemake("results/masked")
    assert done.returncode == 0, done.stdout
    plan = recipes.plan("masked")
    orders = [read_json(plan.model_folder(phase).parent / "order.json") for phase in plan.phases]
    assert [order["phase"] for order in orders] == ["short", "main"]
    assert read_json(plan.model_folder("main") / "config.json")["architectures"] == ["BertForPreTraining"]
    assert commands.jobs("results/masked") == {}
