"""Exact match and F1 by cases that one can check by hand; test_answer_windows.py compares them with the script."""

import pytest

from relm.evaluation.fine_tuning.squad_scoring import is_exact, normalised, score_answers, word_f1
from relm.examples.fine_tuning.squad import MarkedAnswer, SpanQuestion


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("An apple a day", "apple day"),
        ("THE end.", "end"),
        ("theatre", "theatre"),
        ("it's — “so”", "its — “so”"),
        ("the a an", ""),
        (" 3,14\u00a0% ", "314"),
    ],
)
def test_an_answer_is_normalised(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_words_count_as_often_as_they_occur() -> None:
    assert word_f1("one one two", "one two two") == pytest.approx(2 / 3)
    assert word_f1("one", "two") == 0
    assert word_f1("the", "a") == 0, "two answers without words share none"
    assert is_exact("the", "a")


def test_each_question_counts_by_its_best_answer_and_one_without_as_nothing() -> None:
    questions = [SpanQuestion(name, "?", (MarkedAnswer("red car", 0), MarkedAnswer("car", 4))) for name in "abcd"]
    found = score_answers(questions, {"a": "A car!", "b": "red", "c": "blue car"})
    assert found["exact_match"] == 1 / 4
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 4)
