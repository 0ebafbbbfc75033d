"""Files of multiple-choice questions: HellaSwag, BLiMP, ARC and PIQA as prompts, which are texts alone.

A line becomes one prompt for each published way of scoring it, under that way's name:

- lm_eval: EleutherAI's harness 0.4.13, task files of version 1.0. A space stands between the context and each choice, in BLiMP
  too, where the context is empty.
- llm_c: llm.c's `dev/data/hellaswag.py`, which takes `ctx` and the endings unchanged.
- babylm: BabyLM's evaluation pipeline of 2025 for causal models, which takes BLiMP's sentences unchanged; masked models score
  the same sentences (`relm.evaluation.masked_choices`).
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relm.corpus.parquet_content import PARQUET, parse_parquet
from relm.errors import RelmError
from relm.evaluation.evaluated_text import BYTE_ORDER_MARK, read_content

# HellaSwag's texts from WikiHow have marks in square brackets, such as [header] and [step].
_MARKS = re.compile(r"\[.*?\]")


@dataclass(frozen=True)
class ChoicePrompt:
    """A context and the choices after it."""

    context: str
    """The text before each choice, without the space between them; empty if the choices are whole texts."""
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question with its right answer."""

    where: str
    """File and line, for messages."""
    prompts: dict[str, ChoicePrompt]
    """Way of scoring -> its prompt; all have the same count of choices."""
    answer: int
    """Index of the right choice."""
    paradigm: str = ""
    """BLiMP's UID, or the name of the file where lines have none, as those of BabyLM's supplement; empty for other formats."""


def read_questions(file: Path, sha256: str | None, form: str, limit: int | None) -> tuple[list[Question], str]:
    """Return the questions of a file, and its sha256.

    Args:
        file: a JSON object on each line, or a zip archive of such files, which are read in the order of their names, or a
            parquet file with a row for each question.
        sha256: the expected sha256; None: any.
        form: a key of `READERS`. Lines of blimp without a UID belong to the paradigm that their file is named after.
        limit: read only the first `limit` questions; None: all.

    Raises:
        RelmError: the file has another sha256 or no question, or a line has another form.
    """
    content, found = read_content(file, sha256)
    questions: list[Question] = []
    for name, where, line in _lines(file, content):
        if limit is not None and len(questions) >= limit:
            return questions, found
        question = read_question(line, form, where)
        named = form != "blimp" or question.paradigm
        questions.append(question if named else replace(question, paradigm=Path(name).stem))
    if not questions:
        raise RelmError(f"{file}: has no question; give a file with a JSON object on each line, or a zip archive of such files")
    return questions, found


def _lines(file: Path, content: bytes) -> Iterator[tuple[str, str, Any]]:
    """Yield file name, place for messages, and content of each question: the text of a line, or the object of a row."""
    if content.startswith(PARQUET):
        rows = parse_parquet(content, str(file)).to_pylist()
        yield from ((str(file), f"{file}, row {number}", row) for number, row in enumerate(rows, 1))
        return
    for name, text in _members(file, content):
        for number, line in enumerate(_decode(name, text).removesuffix("\n").split("\n"), 1):
            yield name, f"{name}, line {number}", line


def _members(file: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the file, or of each `.jsonl` in it if it is a zip archive."""
    if not content.startswith(b"PK"):
        yield str(file), content
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".jsonl") and not name.startswith("__MACOSX/"):
                    yield f"{file}/{name}", archive.read(name)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise RelmError(f"{file}: the zip archive cannot be read ({error}); download it again") from None


def _decode(name: str, content: bytes) -> str:
    try:
        return content.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise RelmError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def read_question(line: str | dict[str, Any], form: str, where: str) -> Question:
    """Return the question on a line, or in the object that a line or a row has.

    Raises:
        RelmError: the line has another form.
    """
    try:
        row = json.loads(line) if isinstance(line, str) else line
    except ValueError as error:
        raise RelmError(f"{where}: not JSON ({error}); expected an object with the keys of the format {form}") from None
    if not isinstance(row, dict):
        raise RelmError(f"{where}: expected an object with the keys of the format {form}, found {type(row).__name__}")
    question = READERS[form](row, where)
    counts = {len(prompt.choices) for prompt in question.prompts.values()}
    if min(counts) < 2:
        raise RelmError(f"{where}: has {min(counts)} choices, expected two or more; correct the line or delete it")
    if not 0 <= question.answer < min(counts):
        raise RelmError(
            f"{where}: the right answer is number {question.answer} of {min(counts)} choices, expected 0 to {min(counts) - 1}; "
            "a test split without answers cannot be scored"
        )
    return question


# --- formats -----------------------------------------------------------------------------------------------------------------


def _hellaswag(row: Mapping[str, Any], where: str) -> Question:
    begun = f"{_text(row, 'activity_label', where)}: {_text(row, 'ctx_a', where)} "
    context = begun + _text(row, "ctx_b", where, may_be_blank=True).capitalize()
    endings = _texts(row, "endings", where)
    prompts = {
        "lm_eval": ChoicePrompt(without_marks(context), tuple(map(without_marks, endings))),
        "llm_c": ChoicePrompt(_text(row, "ctx", where), endings),
    }
    return Question(where, prompts, _label(row, "label", where))


def without_marks(text: str) -> str:
    """Return a text of HellaSwag as lm_eval scores it, without WikiHow's marks.

    >>> without_marks(" Put it on. [title] Wait. [step] Then  eat ")
    'Put it on.. Wait. Then eat'
    """
    return _MARKS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _blimp(row: Mapping[str, Any], where: str) -> Question:
    sentences = (_text(row, "sentence_good", where), _text(row, "sentence_bad", where))
    paradigm = _text(row, "UID", where) if "UID" in row else ""
    return Question(where, {"lm_eval": ChoicePrompt("", sentences), "babylm": ChoicePrompt("", sentences)}, 0, paradigm)


def _arc(row: Mapping[str, Any], where: str) -> Question:
    asked = row.get("question")
    stem, choices = (
        (_text(asked, "stem", where), asked.get("choices")) if isinstance(asked, dict) else (None, row.get("choices"))
    )
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):  # the original's file
        choices = {key: [choice.get(key) for choice in choices] for key in ("text", "label")}
    if not isinstance(choices, dict):
        raise RelmError(f"{where}: expected text and label of each choice under 'choices', found {type(choices).__name__}")
    texts, labels, key = _texts(choices, "text", where), _texts(choices, "label", where), _text(row, "answerKey", where)
    if key not in labels:
        raise RelmError(f"{where}: 'answerKey' is {key!r}, expected the label of a choice: {', '.join(labels)}")
    return _asked(where, stem or _text(row, "question", where), texts, labels.index(key))


def _piqa(row: Mapping[str, Any], where: str) -> Question:
    solutions = (_text(row, "sol1", where), _text(row, "sol2", where))
    return _asked(where, _text(row, "goal", where), solutions, _label(row, "label", where))


def _asked(where: str, question: str, choices: tuple[str, ...], answer: int) -> Question:
    return Question(where, {"lm_eval": ChoicePrompt(f"Question: {question}\nAnswer:", choices)}, answer)


READERS: dict[str, Callable[[Mapping[str, Any], str], Question]] = {
    "hellaswag": _hellaswag,
    "blimp": _blimp,
    "arc": _arc,
    "piqa": _piqa,
}
"""Format -> reader of a line's object; it raises a RelmError with the line and the key."""


# --- keys of a line ----------------------------------------------------------------------------------------------------------


def _text(row: Mapping[str, Any], key: str, where: str, may_be_blank: bool = False) -> str:
    value = _value(row, key, where)
    if not isinstance(value, str) or not (may_be_blank or value.strip()):
        raise RelmError(f"{where}: expected a text under {key!r}, found {str(value)[:80]!r}; correct the line")
    return value


def _texts(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = _value(row, key, where)
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise RelmError(f"{where}: expected a list of texts under {key!r}, none of them empty, found {str(value)[:80]}")
    return tuple(value)


def _label(row: Mapping[str, Any], key: str, where: str) -> int:
    """Return a number, which some copies of the data have as text."""
    value = _value(row, key, where)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]+", str(value)):
        raise RelmError(
            f"{where}: expected the number of the right choice, from 0 on, under {key!r}, found {str(value)[:80]!r}"
        )
    return int(value)


def _value(row: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in row:
        raise RelmError(
            f"{where}: has no {key!r}, found the keys {', '.join(map(str, row))}; is multiple_choice.format that of the file?"
        )
    return row[key]
