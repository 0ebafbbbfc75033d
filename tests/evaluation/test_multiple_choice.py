from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from choice_files import HELLASWAG, PIQA, ROWS, write_lines
from llama_form import llama_folder

from harness_tasks import small_model, small_tokenizer
from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation.beginning import added_tokens
from relm.evaluation.choices.choice_formats import ChoicePrompt, Question, read_question, read_questions, without_marks
from relm.evaluation.choices.choice_tokens import ChoiceEncoder
from relm.evaluation.choices.multiple_choice import (
    ChoiceScores,
    accuracy,
    evaluate_multiple_choice,
    figures,
    score_choices,
)
from relm.evaluation.choices.ties import choose
from relm.evaluation.execution import Execution
from relm.evaluation.models import load_causal
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.evaluation.protocol_options import MultipleChoice

ONE_THREAD = Execution(threads=1, batch_tokens=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choice")
    return small_model(folder / "model", small_tokenizer(folder), positions=60)


def encoder_of(model: Path) -> ChoiceEncoder:
    loaded = load_tokenizer(model / "tokenizer.json")
    return ChoiceEncoder(loaded, added_tokens(loaded))


def evaluate(model: Path, file: Path, form: str, limit: int | None = None) -> dict[str, Any]:
    output = file.parent / "e.json"
    options = MultipleChoice.model_validate({"format": form})
    evaluate_multiple_choice(model, model / "tokenizer.json", file, options, sha256_of(file), limit, ONE_THREAD, output=output)
    return read_json(output)


def scores_of(*log_likelihoods: float, tokens: int = 1) -> ChoiceScores:
    count = len(log_likelihoods)
    return ChoiceScores(np.array(log_likelihoods), np.full(count, tokens), np.zeros(count, np.bool_))


def test_each_normalisation_divides_by_its_own_length() -> None:
    question = Question(
        "f, line 1", {"lm_eval": ChoicePrompt("c", ("ab", "éé", "abc")), "llm_c": ChoicePrompt("c", ("ab", "éé", "abc"))}, 0
    )
    lm_eval = scores_of(-3.0, -2.9, -5.0)  # by character -1.5, -1.45, -1.67; by byte -1.5, -.725, -1.67
    llm_c = ChoiceScores(np.array([-3.0, -2.9, -5.0]), np.array([3, 2, 6]), np.zeros(3, np.bool_))  # -1, -1.45, -.83
    found = figures([question], {"lm_eval": lm_eval, "llm_c": llm_c})
    assert found["lm_eval_accuracy"] == found["lm_eval_accuracy_per_character"] == found["lm_eval_accuracy_per_byte"] == 0
    found = figures(
        [question], {"lm_eval": scores_of(-3.0, -3.1, -4.4), "llm_c": llm_c}
    )  # 1.5, 1.55, 1.467: the last by length
    assert (found["lm_eval_accuracy"], found["lm_eval_accuracy_per_character"]) == (1, 0)
    assert (found["lm_eval_accuracy_per_byte"], found["llm_c_accuracy"], found["llm_c_accuracy_per_token"]) == (0, 0, 0)
    found = figures([question], {"lm_eval": scores_of(-3.0, -3.1, -4.8)})  # by character 1.5, 1.55, 1.6; by byte 1.5, .775, 1.6
    assert (found["lm_eval_accuracy_per_character"], found["lm_eval_accuracy_per_byte"]) == (1, 0)
    last = Question("f, line 1", question.prompts, 2)
    assert figures([last], {"lm_eval": lm_eval, "llm_c": llm_c})["llm_c_accuracy_per_token"] == 1


def test_of_equal_choices_the_first_is_taken_and_counted_as_a_tie() -> None:
    found = choose(np.array([-2.0, -1.0, -1.0, -3.0, -3.0]), np.ones(5), np.ones(5, int), [3, 2], np.zeros(2, int), 0.0)
    assert (found.indices.tolist(), found.equal.tolist()) == ([1, 0], [True, True])
    question = Question("f", dict.fromkeys(("lm_eval", "llm_c"), ChoicePrompt("c", ("a", "b"))), 0)
    found = figures([question], {"lm_eval": scores_of(-1.0, -1.0), "llm_c": scores_of(-1.0, -2.0)})
    assert (found["ties"], found["lm_eval_accuracy"], found["llm_c_accuracy"]) == (1, 1, 1)


def test_one_question_has_no_standard_error() -> None:
    assert accuracy("a", np.array([True])) == {"a": 1}
    assert accuracy("a", np.array([True, False, False, False])) == {"a": 0.25, "a_stderr": 0.25}


def test_marks_of_wikihow_are_removed_as_lm_eval_does() -> None:
    assert without_marks(" How to bake [title] Mix  it. [substeps]") == "How to bake.  Mix it. ".replace("  ", " ")
    assert without_marks("[header] a [x] b") == " a b"


def by_hand(model: Path, before: list[int], scored: list[int]) -> float:
    """Return ln P of tokens after others, by transformers."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        logits = reference(torch.tensor([[*before, *scored][:-1]])).logits[0, -len(scored) :].double()
    return -float(torch.nn.functional.cross_entropy(logits, torch.tensor(scored), reduction="sum"))


@pytest.mark.parametrize("adds_bos", [None, True, False])
def test_each_way_scores_its_own_tokens(adds_bos: bool | None, model: Path, tmp_path: Path) -> None:
    folder = model if adds_bos is None else llama_folder(tmp_path / "llama", adds_bos)
    encoder = encoder_of(folder)
    loaded = load_causal(folder, encoder.tokenizer.vocabulary_size, ONE_THREAD)

    def ids(text: str) -> list[int]:
        return list(encoder.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)

    bos = list(encoder.added)
    row = {
        **HELLASWAG[2],
        "endings": ["barks", "sleeps", "runs", "sits"],
        "activity_label": "Dogs",
        "ctx_a": "It",
        "ctx_b": "is",
        "ctx": "It is",
    }
    question = read_question(row, "hellaswag", "f")
    expected = {
        "lm_eval": [
            by_hand(folder, [*bos, *ids("Dogs: It Is")], ids(f"Dogs: It Is {e}")[len(ids("Dogs: It Is")) :])
            for e in row["endings"]
        ],
        "llm_c": [by_hand(folder, [*bos, *ids("It is")], ids(f" {e}")) for e in row["endings"]],
    }
    for way, values in expected.items():
        scores = score_choices(loaded, [question], {way: encoder.encode(way, [question])}, 300)[way]
        assert scores.log_likelihoods.tolist() == pytest.approx(values, abs=1e-4), way


def test_the_result_has_every_published_figure_and_counts(model: Path, tmp_path: Path) -> None:
    result = evaluate(model, write_lines(tmp_path / "h.jsonl", HELLASWAG), "hellaswag")
    found, ways = result["figures"], ("lm_eval_accuracy", "lm_eval_accuracy_per_character", "lm_eval_accuracy_per_byte")
    assert {*ways, "llm_c_accuracy", "llm_c_accuracy_per_token", "llm_c_accuracy_stderr"} <= set(found)
    assert (found["examples"], found["choices"], found["truncated"] > 0) == (3, 12, True)
    assert result["protocol"]["format"] == "hellaswag"
    assert result["protocol"]["file_sha256"] == sha256_of(tmp_path / "h.jsonl")
    found = evaluate(model, write_lines(tmp_path / "p.jsonl", PIQA), "piqa", limit=1)["figures"]
    assert (found["examples"], "lm_eval_accuracy_stderr" in found) == (1, False)


@pytest.mark.parametrize("form", ["hellaswag", "arc", "piqa"])
def test_rows_of_a_parquet_file_are_the_questions_of_the_lines(form: str, tmp_path: Path) -> None:
    rows = [{**row, "label": str(row["label"])} if form == "hellaswag" else row for row in ROWS[form]]  # as on the hub
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    lines, _ = read_questions(write_lines(tmp_path / "a.jsonl", ROWS[form]), None, form, None)
    found, sha256 = read_questions(tmp_path / "a.parquet", None, form, None)
    assert [(q.prompts, q.answer) for q in found] == [(q.prompts, q.answer) for q in lines]
    assert sha256 == sha256_of(tmp_path / "a.parquet")
    assert found[1].where == f"{tmp_path}/a.parquet, row 2"
    assert len(read_questions(tmp_path / "a.parquet", None, form, 1)[0]) == 1
    other, key = ("arc", "question") if form == "piqa" else ("piqa", "goal")
    with pytest.raises(RelmError, match=rf"a\.parquet, row 1: {key} is missing; is {other} the format of the file\?"):
        read_questions(tmp_path / "a.parquet", None, other, None)
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(RelmError, match=r"a\.parquet: damaged, or not Parquet .*; download it again"):
        read_questions(tmp_path / "a.parquet", None, form, None)


@pytest.mark.parametrize(
    ("form", "changed", "message"),
    [
        ("hellaswag", {"ctx": None}, r"f\.jsonl, line 2: ctx is missing; is hellaswag the format of the file\?"),
        ("hellaswag", {"ctx": " "}, r"line 2: ctx: expected text that is not blank, found ' '"),
        ("hellaswag", {"label": ""}, r"line 2: label: expected the number of the right choice, from 0 on, found ''"),
        ("hellaswag", {"label": 4}, r"line 2: the right answer is number 4 of 4 choices, expected 0 to 3"),
        ("hellaswag", {"label": -1}, r"line 2: the right answer is number -1 of 4"),
        ("hellaswag", {"label": True}, r"line 2: label: expected the number of the right choice"),
        ("hellaswag", {"endings": ["a"], "label": 0}, r"line 2: has 1 endings, expected 4"),
        ("hellaswag", {"endings": ["a", ""]}, r"line 2: endings\[1\]: expected text that is not blank"),
        ("arc", {"answerKey": "E"}, r"line 2: 'answerKey' is 'E', expected the label of a choice: A, B, C, D"),
        ("arc", {"choices": "A"}, r"line 2: choices: expected an object, found 'A'"),
        ("piqa", {"label": None}, r"line 2: label is missing"),
        ("piqa", {"sol2": 3}, r"line 2: sol2: expected text that is not blank, found 3"),
    ],
)
def test_a_line_of_another_form_is_named(form: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = ROWS[form][:2]
    wrong = {key: value for key, value in {**rows[1], **changed}.items() if value is not None}
    with pytest.raises(RelmError, match=message):
        read_questions(write_lines(tmp_path / "f.jsonl", [rows[0], wrong]), None, form, None)


def test_a_choice_that_leaves_no_room_for_context_is_named(model: Path, tmp_path: Path) -> None:
    rows = [PIQA[0], {**PIQA[1], "sol2": "xqzj " * 40}]
    with pytest.raises(RelmError, match=r"f\.jsonl, line 2: a choice has \d+ tokens, .* has 60 positions; use a model with"):
        evaluate(model, write_lines(tmp_path / "f.jsonl", rows), "piqa")


def test_a_choice_of_which_nothing_can_be_scored_is_named(model: Path) -> None:
    questions = [
        Question("f, line 1", {"llm_c": ChoicePrompt("a", ("b", "c"))}, 0),
        Question("f, line 2", {"llm_c": ChoicePrompt("", ("b", "c"))}, 0),
    ]
    with pytest.raises(RelmError, match=r"f, line 2: .*leaves llm_c no token of a choice to score"):
        encoder_of(model).encode("llm_c", questions)


@pytest.mark.parametrize(
    ("line", "message"), [("no JSON", "line 1: not JSON"), ("[1]", r"line 1: expected an object, found \[1\]")]
)
def test_a_line_that_is_no_object_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(line + "\n")
    with pytest.raises(RelmError, match=message):
        read_questions(tmp_path / "f.jsonl", None, "piqa", None)
