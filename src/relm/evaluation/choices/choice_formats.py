"""Files of multiple-choice questions: HellaSwag, ARC and PIQA as prompts, which are texts.

Each line becomes a prompt for each published way of scoring, under its name:

- lm_eval: EleutherAI's harness 0.4.13, task files of version 1.0. A space precedes each choice.
- llm_c: llm.c's `dev/data/hellaswag.py`, which takes `ctx` and the endings unchanged.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relm.corpus.parquet_content import PARQUET, parse_parquet
from relm.corpus.published_rows import find_repeated, parse_json, require_new
from relm.errors import RelmError
from relm.evaluation.evaluated_text import decode, read_content, split_lines
from relm.formatting import escape_controls
from relm.json_shapes import TEXT, Kind, find_misfit

# HellaSwag's texts from WikiHow have marks in square brackets, such as [header] and [step].
_MARKS = re.compile(r"\[.*?\]")
# Choices of a question of ARC, and endings of one of HellaSwag.
CHOICES_OF_ARC, ENDINGS = range(3, 6), 4


@dataclass(frozen=True)
class ChoicePrompt:
    """A context and the choices after it."""

    context: str
    """The text before each choice, without the space between."""
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question with its right answer."""

    where: str
    """File and line, for messages."""
    prompts: dict[str, ChoicePrompt]
    """Way of scoring -> its prompt; all have the same number of choices."""
    answer: int
    """Index of the right choice."""


def read_questions(file: Path, sha256: str | None, form: str, limit: int | None) -> tuple[list[Question], str]:
    """Return the first `limit` questions of a file, and its sha256.

    The file has a JSON object on each line, or is a parquet file with a row for each question.
    """
    content, found = read_content(file, sha256)
    questions: list[Question] = []
    seen: dict[bytes, str] = {}
    for where, line in _lines(file, content):
        if limit is not None and len(questions) >= limit:
            return questions, found
        expected = f"expected an object with the keys of the format {form}"
        row = parse_json(line, where, expected) if isinstance(line, str) else line
        questions.append(read_question(row, form, where))
        require_new(row, where, seen)
    if not questions:
        raise RelmError(f"{file}: has no question; give a file with a JSON object on each line")
    return questions, found


def _lines(file: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the place of each question, for messages, and its content: the text of a line, or the object of a row."""
    if content.startswith(PARQUET):
        columns = parse_parquet(content, str(file))
        for number, values in enumerate(zip(*columns.values(), strict=True), 1):
            yield f"{file}, row {number}", dict(zip(columns, values, strict=True))
        return
    yield from split_lines(decode(content, str(file)), str(file))


def read_question(row: dict[str, Any], form: str, where: str) -> Question:
    """Return the question in the object of a line or a row."""
    if fault := find_misfit(row, SHAPES[form]):
        raise RelmError(f"{where}: {fault}; is {form} the format of the file? If so, correct the line or delete it")
    question = READERS[form](row, where)
    choices = len(question.prompts["lm_eval"].choices)
    if not 0 <= question.answer < choices:
        raise RelmError(
            f"{where}: the right answer is number {question.answer} of {choices} choices, expected 0 to {choices - 1}; "
            "a test split without answers cannot be scored"
        )
    return question


WORDS = Kind("text that is not blank", lambda value: isinstance(value, str) and bool(value.strip()))
LABEL = Kind(  # some copies of the data have it as text
    "the number of the right choice, from 0 on",
    lambda value: not isinstance(value, bool) and re.fullmatch(r"-?[0-9]{1,9}", str(value)) is not None,
)
SHAPES: dict[str, dict[str, Any]] = {
    "hellaswag": {"activity_label": WORDS, "ctx_a": WORDS, "ctx_b": TEXT, "ctx": WORDS, "endings": [WORDS], "label": LABEL},
    "arc": {"question": WORDS, "choices": {"text": [WORDS], "label": [WORDS]}, "answerKey": WORDS},
    "piqa": {"goal": WORDS, "sol1": WORDS, "sol2": WORDS, "label": LABEL},
}
"""Format -> the shape of a line's object."""


def _hellaswag(row: Mapping[str, Any], where: str) -> Question:
    context, endings = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}", tuple(row["endings"])
    if len(endings) != ENDINGS:
        raise RelmError(f"{where}: has {len(endings)} endings, expected {ENDINGS}; correct the line or delete it")
    prompts = {
        "lm_eval": ChoicePrompt(without_marks(context), tuple(map(without_marks, endings))),
        "llm_c": ChoicePrompt(row["ctx"], endings),
    }
    return Question(where, prompts, int(row["label"]))


def without_marks(text: str) -> str:
    """Return a text of HellaSwag as lm_eval scores it, without WikiHow's marks.

    >>> without_marks(" Put it on. [title] Wait. [step] Then  eat ")
    'Put it on.. Wait. Then eat'
    """
    return _MARKS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _arc(row: Mapping[str, Any], where: str) -> Question:
    texts, labels, key = tuple(row["choices"]["text"]), row["choices"]["label"], row["answerKey"]
    if len(texts) != len(labels):
        raise RelmError(f"{where}: has {len(texts)} choices and {len(labels)} labels, expected as many; correct the line")
    if len(texts) not in CHOICES_OF_ARC:
        raise RelmError(f"{where}: has {len(texts)} choices, expected 3 to 5; correct the line or delete it")
    if (double := find_repeated(labels)) is not None:
        raise RelmError(f"{where}: has the label {double!r:.80} twice, expected another for each choice; correct the line")
    if key not in labels:
        expected = escape_controls(", ".join(labels))[:200]
        raise RelmError(f"{where}: 'answerKey' is {key[:80]!r}, expected the label of a choice: {expected}")
    return _asked(where, row["question"], texts, labels.index(key))


def _piqa(row: Mapping[str, Any], where: str) -> Question:
    return _asked(where, row["goal"], (row["sol1"], row["sol2"]), int(row["label"]))


def _asked(where: str, question: str, choices: tuple[str, ...], answer: int) -> Question:
    return Question(where, {"lm_eval": ChoicePrompt(f"Question: {question}\nAnswer:", choices)}, answer)


READERS: dict[str, Callable[[Mapping[str, Any], str], Question]] = {
    "hellaswag": _hellaswag,
    "arc": _arc,
    "piqa": _piqa,
}
"""Format -> function of an object that has its shape, and of its place for messages."""
