"""The items of published tests as texts, to compare with training documents."""

from dataclasses import dataclass
from pathlib import Path

from relm.corpus.parquet_content import parse_parquet
from relm.errors import RelmError
from relm.evaluation.choices.choice_formats import READERS, Question, read_questions
from relm.evaluation.evaluated_text import BYTE_ORDER_MARK, read_content, read_passages, read_text
from relm.examples.cut_passages import SHORTEST, list_sequences
from relm.examples.fine_tuning.squad import parse_squad


@dataclass(frozen=True)
class Item:
    """One item of a test."""

    where: str
    """The item's position, such as line 12."""
    texts: tuple[str, ...]
    """Its texts: a passage, a context with each choice, a context and its question, or GLUE's one or two texts."""


def read_items(file: Path, form: str, text_key: str) -> tuple[list[Item], str]:
    """Return the items of a test's file, and its sha256.

    `form` is one of `relm.recipes.evaluation.published_tests.ITEM_FORMATS`; `text_key` names a passage of LAMBADA.
    """
    if form in READERS:
        questions, found = read_questions(file, None, form, limit=None)
        return [_question_item(question, file) for question in questions], found
    if form == "lambada":
        passages, found = read_passages(file, None, text_key, limit=None)
        return [Item(f"line {number}", (text,)) for number, text in enumerate(passages, 1)], found
    if form == "glue":
        rows, found = read_content(file, None)
        return _read_glue(rows, file), found
    if form == "squad":
        content, found = read_content(file, None)
        asked = ((paragraph.context, each) for paragraph in parse_squad(content, str(file)) for each in paragraph.questions)
        return [Item(f"question {question.id}", (context, question.text)) for context, question in asked], found
    text, found = read_text(file, None)
    lines = enumerate(text.removeprefix(BYTE_ORDER_MARK).split("\n"), 1)  # a line of WikiText is a paragraph
    return [Item(f"line {number}", (line,)) for number, line in lines if line.strip()], found


def read_sought(file: Path, form: str, text_key: str) -> tuple[list[tuple[Item, list[str]]], str]:
    """Return each item of a test's file with the sequences of words to look for, and the sha256 of the file."""
    items, found = read_items(file, form, text_key)
    sought = [(item, [sequence for text in item.texts for sequence in list_sequences(text)]) for item in items]
    if not any(sequences for _, sequences in sought):
        raise RelmError(
            f"{file}: none of its {len(items):,} items has a text of {SHORTEST} words or more, so nothing can be compared. Is "
            f"{form} the format of the file?"
        )
    return sought, found


def _question_item(question: Question, file: Path) -> Item:
    prompts = question.prompts.values()
    texts = [f"{prompt.context} {choice}" for prompt in prompts for choice in prompt.choices]
    where = question.where.removeprefix(str(file)).removeprefix(", ").removeprefix("/")
    return Item(where, tuple(dict.fromkeys(texts)))


def _read_glue(content: bytes, file: Path) -> list[Item]:
    """Return each row of a GLUE file in the hub's format as an item, with its columns of text, whatever the task."""
    columns = parse_parquet(content, str(file)).values()
    texts = [column for column in columns if any(isinstance(value, str) for value in column)]
    if not texts:
        raise RelmError(f"{file}: has no text; give a GLUE file in the hub's format, Parquet")
    return [Item(f"row {number}", tuple(filter(None, row))) for number, row in enumerate(zip(*texts, strict=True), 1)]
