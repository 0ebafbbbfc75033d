"""A file of SQuAD is read, or rejected with the place of its fault."""

import copy
import json
from typing import Any

import pytest

from question_files import SAMPLE, made_file
from relm.errors import RelmError
from relm.examples.fine_tuning.squad import MarkedAnswer, first_questions, parse_squad

QUESTION = ("data", 0, "paragraphs", 0, "qas", 0)


def changed(keys: tuple[Any, ...], value: Any) -> bytes:
    """Return the made file with another value under some keys; the value None: without the last key."""
    content: Any = copy.deepcopy(made_file())
    at = content
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    if value is None:
        del at[keys[-1]]
    return json.dumps(content).encode()


FAULTS = {
    "no UTF-8": (b'{"data": "\xff"}', "byte 10: not valid UTF-8"),
    "no JSON": (b"{", "not JSON"),
    "a list": (b"[]", r"expected an object, found \[\]"),
    "no data": (b"{}", "data is missing"),
    "no questions": (b'{"data": []}', "has no question"),
    "no context": (changed(("data", 0, "paragraphs", 1, "context"), None), r"data\[0\].paragraphs\[1\].context is missing"),
    "a number": (changed((*QUESTION, "question"), 3), r"qas\[0\].question: expected text, found 3"),
    "a negative offset": (
        changed((*QUESTION, "answers", 0, "answer_start"), -1),
        r"answers\[0\].answer_start: expected a whole number from 0 on, found -1",
    ),
    "an offset after the end": (
        changed((*QUESTION, "answers", 0, "answer_start"), 95),
        r"answers\[0\].answer_start: expected at most 91, where the context ends, found 95",
    ),
    "an empty answer": (changed((*QUESTION, "answers", 1, "text"), " "), r"answers\[1\].text: expected a part of the context"),
    "SQuAD 2.0": (changed((*QUESTION, "answers"), []), r"qas\[0\].answers: expected at least one, found none, as in SQuAD 2.0"),
    "an id twice": (
        changed((*QUESTION, "id"), "1-0"),
        r"data\[0\].paragraphs\[1\].qas\[0\].id: expected a unique id, found '1-0' as in data\[0\].paragraphs\[0\].qas\[0\]",
    ),
}


@pytest.mark.parametrize("limit", [1, 2, 3, 99, None])
def test_the_first_questions_are_taken_with_their_paragraphs(limit: int | None) -> None:
    paragraphs = parse_squad(SAMPLE.read_bytes(), "sample")
    asked = [question.id for paragraph in paragraphs for question in paragraph.questions]
    found = first_questions(paragraphs, limit)
    assert [question.id for paragraph in found for question in paragraph.questions] == asked[:limit]
    assert all(paragraph.questions for paragraph in found)


def test_a_file_is_read() -> None:
    paragraphs = parse_squad(SAMPLE.read_bytes(), SAMPLE.name)
    assert [len(paragraph.questions) for paragraph in paragraphs] == [2, 3]
    question = paragraphs[1].questions[0]
    assert (question.id, question.answers) == ("5733b1da4776f41900661068", (MarkedAnswer("1882", 3),))
    for paragraph in paragraphs:
        for asked in paragraph.questions:
            for answer in asked.answers:
                assert paragraph.context[answer.start :].startswith(answer.text)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place(fault: str) -> None:
    content, message = FAULTS[fault]
    with pytest.raises(RelmError, match=rf"^train.json: .*{message}.*; .*(SQuAD 1.1|UTF-8)"):
        parse_squad(content, "train.json")
