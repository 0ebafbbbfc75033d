"""Ties among choices: the protocol's figure takes the first, and its share of ties, the split figure and the verdict say so."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choice_files import hellaswag, write_lines
from safetensors.torch import load_file, save_file

from harness_tasks import PROSE, passages, small_model, small_tokenizer
from relm.artifact import read_json
from relm.evaluation.choices.multiple_choice import evaluate_multiple_choice
from relm.evaluation.choices.ties import ROUNDING, choose
from relm.evaluation.execution import Execution
from relm.evaluation.result import describe_ties, tied_share
from relm.recipes.evaluation.expectations import Expectation
from relm.recipes.evaluation.protocol_options import MultipleChoice
from relm.reporting.figures import measured_task
from relm.reporting.verify import judge_row

# Pairs of sentences of the same letters, which have the same count of tokens.
PAIRS = [("a b c", "a c b"), ("a d e f", "a f d e"), ("a h g", "a g h"), ("a k l m", "a m l k")]
ROWS = [{"goal": "b", "sol1": good, "sol2": bad, "label": 0} for good, bad in PAIRS]


def causal(folder: Path) -> Path:
    return small_model(folder / "model", small_tokenizer(folder), positions=60)


def scaled(model: Path, factor: float) -> Path:
    """Multiply all weights of a model by a factor."""
    weights = {name: weight * factor for name, weight in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    (model / "model.safetensors.json").unlink(missing_ok=True)
    return model


def evaluate(model: Path, file: Path, precision: Any = "float32", form: str = "piqa") -> tuple[dict[str, Any], str]:
    options, execution = MultipleChoice.model_validate({"format": form}), Execution(threads=1, precision=precision)
    output = file.with_name("e.json")
    said = evaluate_multiple_choice(model, model / "tokenizer.json", file, options, output=output, execution=execution)
    return read_json(output), said


def judged(metric: str, *figures: dict[str, Any]) -> dict[str, Any]:
    expected = {"metric": metric, "value": 1.0, "tolerance": 0.1, "basis": "b", "place": "p"}
    runs = {seed: {"e": {"figures": each}} for seed, each in enumerate(figures, 1)}
    return judge_row(Expectation.model_validate(expected), runs)


def test_a_model_of_zeros_has_the_protocol_s_figure_and_a_half_where_ties_are_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    way = "lm_eval_accuracy"
    with caplog.at_level(logging.WARNING):
        result, said = evaluate(scaled(causal(tmp_path), 0.0), write_lines(tmp_path / "f.jsonl", ROWS))
    figures = result["figures"]
    assert (figures[way], figures[f"{way}_tie_split"], figures[f"{way}_tied"]) == (1, 0.5, 1)
    assert (figures["ties"], figures["near_ties"]) == (4, 0)
    assert f"{way} 1.0000 (0.5000 with ties split)" in said
    assert "; 4 ties, 0 near-ties; " in said
    assert "f.jsonl: 100.00% of the questions of " in caplog.text
    row = judged(f"e.{way}", figures)
    assert (row["verdict"], row["ours"]) == ("not comparable", 1)
    assert row["sentence"] == f"e.{way}: not comparable: 100.00% of its questions are ties or near-ties, above 1%."
    assert judged(f"e.{way}_tie_split", figures)["verdict"] != "not comparable"
    task = measured_task("e", result, None)
    assert "have several likeliest choices" in task.description
    assert ("The same, ties split", "0.5000") in [(figure.name, figure.value) for figure in task.figures]


def test_choices_with_the_same_tokens_are_equal_wherever_they_are_in_a_batch(tmp_path: Path) -> None:
    words = PROSE.read_text(encoding="utf-8").split()
    texts = [" ".join(words[start : start + 3 + start % 4]) for start in range(0, 288, 3)]
    endings = [[one, other, one, last] for one, other, last in zip(texts[::3], texts[1::3], texts[2::3], strict=True)]
    rows = [hellaswag("Doing", "They did it.", "", each, 2) for each in endings]
    model = small_model(tmp_path / "model", small_tokenizer(tmp_path), lines=passages()[:20], positions=60)
    figures = evaluate(model, write_lines(tmp_path / "f.jsonl", rows), form="hellaswag")[0]["figures"]
    for name in ("lm_eval_accuracy", "llm_c_accuracy", "lm_eval_accuracy_per_byte"):
        assert figures[name] == 0, "the right choice is never the first of its equals"
        assert 0 < figures[f"{name}_tie_split"] <= figures[f"{name}_tied"] / 2


def test_choices_that_bfloat16_cannot_tell_apart_are_near_ties_only_in_it(tmp_path: Path) -> None:
    model, file = scaled(causal(tmp_path), 0.05), write_lines(tmp_path / "f.jsonl", ROWS)
    figures = {precision: evaluate(model, file, precision)[0]["figures"] for precision in ("float32", "bfloat16")}
    assert (figures["float32"]["near_ties"], figures["float32"]["lm_eval_accuracy_tied"]) == (0, 0)
    assert figures["bfloat16"]["ties"] + figures["bfloat16"]["near_ties"] == 4
    assert figures["bfloat16"]["lm_eval_accuracy_tie_split"] == 0.5
    protocol = evaluate(model, file, "bfloat16")[0]["protocol"]
    assert "rounding to bfloat16 moves their difference: by 0.00391 nats" in protocol["near_ties"]


@pytest.mark.parametrize(
    ("values", "lengths", "tokens", "answer", "unit", "expected"),
    [
        ([-1.0, -1.0, -1.0, -2.0], [1, 1, 1, 1], [1, 1, 1, 1], 2, 0.0, (1 / 3, True)),
        ([-1.0, -1.0, -1.0, -2.0], [1, 1, 1, 1], [1, 1, 1, 1], 3, 0.0, (0, True)),
        ([-1.0, -1.5], [1, 1], [8, 8], 0, 0.1, (1, False)),
        ([-1.0, -1.4], [1, 1], [8, 8], 1, 0.1, (0.5, True)),  # the square root of 16, times 0.1
        ([-8.0, -8.4], [8, 8], [8, 8], 1, 0.1, (0.5, True)),  # the same divided by a length
        ([-8.0, -8.8], [8, 8], [8, 8], 1, 0.1, (0, False)),
        ([-1.0, -9.0], [0, 3], [1, 1], 0, 0.1, (0, False)),  # an empty choice is never taken
        ([-1.0, -9.0], [0, 0], [1, 1], 0, 0.1, (0.5, True)),
        ([-1.0, -1.0 - 2.0**-8], [1, 1], [1, 1], 1, ROUNDING["bfloat16"], (0.5, True)),
        ([-1.0, -1.0 - 2.0**-8], [1, 1], [1, 1], 1, ROUNDING["float32"], (0, False)),
    ],
)
def test_a_tie_counts_as_a_guess_among_the_likeliest(
    values: list[float], lengths: list[int], tokens: list[int], answer: int, unit: float, expected: tuple[float, bool]
) -> None:
    arrays = (np.array(values), np.array(lengths, np.float64), np.array(tokens))
    found = choose(*arrays, [len(values)], np.array([answer]), unit)
    assert (found.shares[0], found.tied[0]) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.parametrize(
    ("name", "figures", "share"),
    [
        ("lm_eval_accuracy", {"lm_eval_accuracy": 0.5, "lm_eval_accuracy_tied": 0.01, "ties": 9, "near_ties": 0}, 0.01),
        ("lm_eval_accuracy_stderr", {"lm_eval_accuracy_tied": 0.02, "near_ties": 0}, 0.02),
        ("lm_eval_accuracy_tie_split", {"lm_eval_accuracy_tied": 0.02, "near_ties": 0}, 0),
        ("masked_accuracy", {"masked_accuracy": 0.5}, 0),
    ],
)
def test_the_share_of_ties_is_that_of_the_figure(name: str, figures: dict[str, Any], share: float) -> None:
    assert tied_share(name, figures) == share


def test_one_tie_in_a_hundred_is_compared_and_no_more() -> None:
    for ties, word in ((0.01, "difference shown, no noise known"), (0.0101, "not comparable")):
        figures = {"lm_eval_accuracy": 0.95, "lm_eval_accuracy_tied": ties, "near_ties": 0}
        assert judged("e.lm_eval_accuracy", figures)["verdict"] == word
        assert bool(describe_ties(figures)) == (word == "not comparable")
    row = judged("e.lm_eval_accuracy", {**figures, "lm_eval_accuracy_tied": 0.0}, figures)
    assert row["sentence"].endswith("not comparable: 1.01% of its questions are ties or near-ties, above 1% with seed 2.")
    assert json.dumps(row)  # as verify.json
