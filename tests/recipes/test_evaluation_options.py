"""Evaluations that a recipe may name."""

import re
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.plan import BEFORE, REFERENCE, TRAINED
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe, load_recipe
from small_project import Commands

MASKED = """
title: masked
data: {dataset: sample}
tokenizer: {train: wordpiece, vocabulary_size: 400}
model: {architecture: bert, layers: 1, heads: 2, hidden_size: 32, positions: 32}
pretrain:
  main: {objective: masked, sequence_length: 32, global_batch_size: 4, steps: 2, optimizer: {learning_rate: 1e-3}}
"""


def plan_with(project: Commands, monkeypatch: pytest.MonkeyPatch, recipe: str) -> Recipe:
    monkeypatch.chdir(project.folder)
    Path("recipes/new.yaml").write_text(recipe)
    return load_recipe(Path("recipes/new.yaml"))


@pytest.mark.parametrize("evaluation", ["held_out", "samples", "lm_eval:hellaswag"])
def test_a_masked_model_has_no_evaluation_of_next_tokens(
    project: Commands, monkeypatch: pytest.MonkeyPatch, evaluation: str
) -> None:
    with pytest.raises(RelmError, match=f"evaluate: {evaluation}: for objective causal; the last phase has masked"):
        plan_with(project, monkeypatch, f'{MASKED}evaluate: ["{evaluation}"]\n')


def test_a_causal_model_has_no_masked_evaluation(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RelmError, match="evaluate: masked_lm: for objective masked; the last phase has causal"):
        plan_with(project, monkeypatch, "extends: tiny\nevaluate: [masked_lm]\n")


TESTS = {
    "passages": "protocol: lambada\nfiles:\n  a.txt: ",
    "endings": "protocol: multiple_choice\nmultiple_choice: {{format: hellaswag}}\nfiles:\n  a.txt: ",
    "answers": "protocol: squad\ntraining_file: b.txt\nfiles:\n  b.txt: {0}\n  a.txt: ",
    "pairs": "protocol: glue\nglue: {{task: rte}}\ntraining_file: b.txt\nfiles:\n  b.txt: {0}\n  a.txt: ",
}
REMOTE = '{{sha256: {digit}, size: 1, sources: [{{url: "https://example.org/a.txt"}}]}}'
CAUSAL = "extends: tiny\n"


def write_test(name: str) -> None:
    """Write the file of one of `TESTS`; its training file, if any, has a sha256 of zeros, the other one of ones."""
    Path("recipes/evaluations").mkdir(exist_ok=True)
    zeros, ones = (REMOTE.format(digit="'" + digit * 64 + "'") for digit in "01")
    Path("recipes/evaluations", f"{name}.yaml").write_text(f"title: x\nlicence: CC0-1.0\n{TESTS[name].format(zeros)}{ones}\n")


@pytest.mark.parametrize(
    ("recipe", "test", "message"),
    [
        (MASKED, "passages", "evaluate: passages: for objective causal; the last phase has masked"),
        (MASKED, "endings", "evaluate: endings: for objective causal; the last phase has masked"),
        (CAUSAL, "answers", "evaluate: answers: for objective masked; the last phase has causal"),
        (CAUSAL, "pairs", "evaluate: pairs: for objective masked; the last phase has causal"),
        (MASKED, "pairs", "its sequences have 128 tokens, and model.positions is 32; name a test with a shorter glue.sequence"),
        (MASKED, "answers", "evaluate: answers: its sequences have 384 tokens, and model.positions is 32; name a test"),
    ],
)
def test_a_published_test_fits_the_objective_and_the_model(
    project: Commands, monkeypatch: pytest.MonkeyPatch, recipe: str, test: str, message: str
) -> None:
    plan_with(project, monkeypatch, f"{recipe}evaluate: [{test}]\n")
    write_test(test)
    with pytest.raises(RelmError, match=re.escape(message)):
        Project().plan("new")


def test_a_test_with_two_files_is_fine_tuned_on_one_of_them(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_with(project, monkeypatch, f"{MASKED.replace('positions: 32', 'positions: 384')}evaluate: [answers]\n")
    write_test("answers")
    plan = Project().plan("new")
    assert plan.test_downloads("answers")["file"].parts[-2:] == ("1" * 12, "a.txt")
    assert plan.test_downloads("answers")["training_file"].parts[-2:] == ("0" * 12, "b.txt")
    assert plan.evaluation_identity("answers")["evaluation"] == "squad"
    assert plan.evaluations()["answers"].name == "answers.json"
    twin = Project().plan("smoke/new").evaluation_identity("answers")["options"]
    assert twin == {"batch_size": 8, "doc_stride": 16, "max_query_length": 16, "seeds": 2, "sequence_length": 64}


def test_a_task_of_glue_is_fine_tuned_on_and_its_twin_asks_less(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_with(project, monkeypatch, f"{MASKED.replace('positions: 32', 'positions: 128')}evaluate: [pairs]\n")
    write_test("pairs")
    found = Project().plan("new").evaluation_identity("pairs")
    assert (found["evaluation"], found["options"]) == ("glue", {"task": "rte"})
    twin = Project().plan("smoke/new").evaluation_identity("pairs")["options"]
    assert twin == {"batch_size": 8, "seeds": 2, "sequence_length": 64, "task": "rte"}


def test_an_evaluation_given_twice_is_refused(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RelmError, match="evaluate: held_out is there twice"):
        plan_with(project, monkeypatch, "extends: tiny\nevaluate: [held_out, samples, held_out]\n")


def test_only_what_starts_from_weights_has_figures_before(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    plan = Project().plan("tiny")
    assert list(plan.evaluations(TRAINED)) == ["held_out", "samples"]
    assert plan.evaluations(BEFORE) == {}
    assert plan.evaluations(REFERENCE) == {}


def test_weights_of_the_authors_have_to_be_weights(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_with(project, monkeypatch, "extends: tiny\nexpect_reference: words\n")
    Path("recipes/models/words.yaml").write_text(
        "title: words\nlicence: MIT\ntokenizer: bert_wordpiece_cased\nfiles:\n"
        f"  vocab.txt: {{sha256: '{'0' * 64}', size: 3, sources: [{{url: 'https://example.org/vocab.txt'}}]}}\n"
    )
    with pytest.raises(RelmError, match="expect_reference: words declares no weights; set weights: true"):
        Project().plan("new")
