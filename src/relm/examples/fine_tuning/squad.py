"""Read SQuAD 1.1 files: paragraphs, and questions whose answers are spans of them (Rajpurkar et al. 2016, arXiv 1606.05250)."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relm.corpus.published_rows import parse_json
from relm.errors import RelmError
from relm.json_shapes import COUNT, OBJECT, TEXT, find_misfit

REMEDY = "give a file of SQuAD 1.1, such as dev-v1.1.json"
_ANSWER = {"text": TEXT, "answer_start": COUNT}
_PARAGRAPH = {"context": TEXT, "qas": [{"id": TEXT, "question": TEXT, "answers": [_ANSWER]}]}
_FILE = {"data": [{"paragraphs": [_PARAGRAPH]}]}


@dataclass(frozen=True)
class MarkedAnswer:
    """An answer that a person marked."""

    text: str
    start: int
    """Offset of its first character in the paragraph."""


@dataclass(frozen=True)
class SpanQuestion:
    """A question about a paragraph."""

    id: str
    text: str
    answers: tuple[MarkedAnswer, ...]
    """At least one; in a development file from several people."""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and its questions."""

    context: str
    questions: tuple[SpanQuestion, ...]


def parse_squad(content: bytes, name: str) -> list[Paragraph]:
    """Return the paragraphs of a SQuAD 1.1 file that have questions, in their order; `name` is the file's, for messages.

    Raises RelmError if the file is not JSON in UTF-8, a key is missing or has a wrong type, two questions share an id, an
    answer ends behind its paragraph, or a question has no answer, as in SQuAD 2.0.
    """
    try:
        value = parse_json(content.decode().removeprefix(codecs.BOM_UTF8.decode()), name, REMEDY)
    except UnicodeDecodeError as error:
        raise RelmError(f"{name}: byte {error.start}: not valid UTF-8; save the file as UTF-8") from None
    if fault := find_misfit(value, OBJECT) or find_misfit(value, _FILE) or next(_faults(value), None):
        raise RelmError(f"{name}: {fault}; {REMEDY}")
    paragraphs = [_paragraph(paragraph) for article in value["data"] for paragraph in article["paragraphs"]]
    if not (asked := [paragraph for paragraph in paragraphs if paragraph.questions]):
        raise RelmError(f"{name}: has no questions; {REMEDY}")
    return asked


def first_questions(paragraphs: Sequence[Paragraph], limit: int | None) -> list[Paragraph]:
    """Return the paragraphs of the first `limit` questions, with only these; None: all."""
    if limit is None:
        return list(paragraphs)
    found, left = [], limit
    for paragraph in paragraphs:
        if left <= 0:
            break
        found.append(Paragraph(paragraph.context, paragraph.questions[:left]))
        left -= len(paragraph.questions)
    return found


def _faults(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a file whose keys have the right types."""
    seen: dict[str, str] = {}
    for number, article in enumerate(value["data"]):
        for index, paragraph in enumerate(article["paragraphs"]):
            if paragraph["qas"] and not paragraph["context"].strip():
                yield f"data[{number}].paragraphs[{index}].context: expected text, found {paragraph['context']!r:.80}"
            for position, asked in enumerate(paragraph["qas"]):
                where = f"data[{number}].paragraphs[{index}].qas[{position}]"
                if first := seen.get(asked["id"]):
                    yield f"{where}.id: expected a unique id, found {asked['id']!r:.80} as in {first}"
                seen[asked["id"]] = where
                if not asked["answers"]:
                    yield f"{where}.answers: expected at least one, found none, as in SQuAD 2.0"
                for last, answer in enumerate(asked["answers"]):
                    yield from _answer_faults(answer, f"{where}.answers[{last}]", len(paragraph["context"]))


def _answer_faults(answer: Mapping[str, Any], where: str, length: int) -> Iterator[str]:
    if not answer["text"].strip():
        yield f"{where}.text: expected a part of the context, found {answer['text']!r:.80}"
    elif answer["answer_start"] + len(answer["text"]) > length:
        last = length - len(answer["text"])
        yield f"{where}.answer_start: expected at most {last}, where the context ends, found {answer['answer_start']}"


def _paragraph(value: Mapping[str, Any]) -> Paragraph:
    questions = [
        SpanQuestion(
            asked["id"], asked["question"], tuple(MarkedAnswer(each["text"], each["answer_start"]) for each in asked["answers"])
        )
        for asked in value["qas"]
    ]
    return Paragraph(value["context"], tuple(questions))
