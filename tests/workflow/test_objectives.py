"""The data's way for objectives other than causal, through the rules: documents, tokenizer, tables, manifest."""

import os
from pathlib import Path

import pytest
import transformers

from relm.artifact import read_json
from relm.recipes.project import Project
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
evaluate: [masked_lm, training]
run: {{threads: 1, checkpoint_interval: 3, micro_batch_size: 2, log_interval: 2}}
""",
    "seq2seq": f"""
title: Diacritics put back
data: {{dataset: sample}}
tokenizer: {{train: byte_level_bpe, vocabulary_size: 400}}
model: {{architecture: mt5, layers: 1, heads: 2, head_size: 8, hidden_size: 16, intermediate_size: 32}}
pretrain:
  main: {{objective: seq2seq, sequence_length: 24, loss_normalisation: per_replica, loss_shares: 2, {PHASE}}}
evaluate: [diacritics, training]
diacritics: {{examples: 12}}
run: {{threads: 1, checkpoint_interval: 3, log_interval: 2}}
""",
}
AUTO_CLASSES = {"masked": "AutoModelForMaskedLM", "seq2seq": "AutoModelForSeq2SeqLM"}
LOADED_BY = {
    "masked": 'pipeline("fill-mask", model="results/masked")',
    "seq2seq": "import AutoModelForSeq2SeqLM, AutoTokenizer",
}
ARCHITECTURES = {"masked": "BertForPreTraining", "seq2seq": "MT5ForConditionalGeneration"}

EVALUATED = {
    "masked": {"masked_perplexity", "redrawn_perplexity", "next_sentence_accuracy", "minutes"},
    "seq2seq": {"word_accuracy", "no_diacritics_word_accuracy", "most_frequent_form_word_accuracy", "sequences_per_second"},
}


@pytest.fixture
def objectives(project: Commands, monkeypatch: pytest.MonkeyPatch) -> tuple[Commands, Project]:
    for name, text in RECIPES.items():
        (project.folder / "recipes" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(project.folder)
    return project, Project()


def test_each_phase_has_the_examples_of_its_length(objectives) -> None:
    plan = objectives[1].plan("masked")
    assert plan.manifest("short") != plan.manifest("main")
    assert list(plan.examples_keys.values()) == ["short", "main"]


def test_what_is_drawn_while_reading_shares_the_stored_examples(objectives) -> None:
    folder: Path = objectives[0].folder
    for name, masked in {"more": "{probability: 0.2}", "other": "{short_sequence_probability: 0.1}"}.items():
        (folder / "recipes" / f"{name}.yaml").write_text(f"extends: masked\npretrain: {{main: {{masked: {masked}}}}}\n")
    masked, more, other = (objectives[1].plan(name).manifest("main") for name in ("masked", "more", "other"))
    assert more == masked
    assert other != masked


@pytest.mark.parametrize("name", ["masked", pytest.param("seq2seq", marks=pytest.mark.full)])
def test_a_recipe_runs_from_the_dump_to_its_published_model(objectives, name: str) -> None:
    commands, recipes = objectives
    done = commands.snakemake(f"results/{name}")
    assert done.returncode == 0, done.stdout
    plan = recipes.plan(name)
    orders = [read_json(plan.model_folder(phase).parent / "order.json")["phase"] for phase in plan.phases]
    assert orders == plan.phases
    assert read_json(Path("results") / name / "config.json")["architectures"] == [ARCHITECTURES[name]]
    card = (Path("results") / name / "README.md").read_text()
    assert LOADED_BY[name] in card
    loaded = getattr(transformers, AUTO_CLASSES[name]).from_pretrained(Path("results") / name)
    assert type(loaded).__name__ in (ARCHITECTURES[name], "BertForMaskedLM")
    evaluated = {path.stem: read_json(path)["figures"] for path in (Path("results") / name / "eval").glob("*.json")}
    assert set(evaluated) == set(plan.recipe.evaluate)
    assert set(EVALUATED[name]) <= {figure for figures in evaluated.values() for figure in figures}
    manifest = plan.manifest("main")
    assert read_json(manifest)["objective"] == name
    assert read_json(manifest)["splits"]["train"]["examples"] > 10
    os.utime(manifest.parent / "sample.xml.train.arrow")
    assert commands.jobs(f"results/{name}") == {}
