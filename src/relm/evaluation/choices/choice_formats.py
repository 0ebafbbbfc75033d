"""Files of multiple-choice questions: HellaSwag, BLiMP, ARC and PIQA as prompts, which are texts alone.

A line becomes one prompt for each published way of scoring it, under that way's name:

- lm_eval: EleutherAI's harness 0.4.13, task files of version 1.0. A space stands between the context and each choice, in BLiMP
  too, where the context is empty.
- llm_c: llm.c's `dev/data/hellaswag.py`, which takes `ctx` and the endings unchanged.
- babylm: BabyLM's evaluation pipeline of 2025 for causal models, which takes BLiMP's sentences unchanged; masked models score
  the same sentences (`relm.evaluation.choices.masked_choices`).
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relm.corpus.archive import FAULTS
from relm.corpus.download.source_faults import clip
from relm.corpus.parquet_content import PARQUET, parse_parquet
from relm.corpus.published_rows import find_repeated, parse_json, require_new, require_proportion
from relm.errors import RelmError
from relm.evaluation.evaluated_text import BYTE_ORDER_MARK, read_content
from relm.formatting import escape_controls, find_control_character

# HellaSwag's texts from WikiHow have marks in square brackets, such as [header] and [step].
_MARKS = re.compile(r"\[.*?\]")
# Bytes that are read at once: bzip2 and LZMA unpack whole blocks of this size, to about 80 MB at most.
BLOCK = 4096
# Choices of a question of ARC, and endings of one of HellaSwag.
CHOICES_OF_ARC, ENDINGS = range(3, 6), 4


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
    """Return the questions of a file, the first `limit` ones if that is given, and its sha256.

    The file has a JSON object on each line, or is a zip archive of such files, which are read in the order of their names, or a
    parquet file with a row for each question. Lines of blimp without a UID belong to the paradigm that their file is named
    after.
    """
    content, found = read_content(file, sha256)
    questions: list[Question] = []
    seen: dict[bytes, str] = {}
    for name, where, line in _lines(file, content):
        if limit is not None and len(questions) >= limit:
            return questions, found
        row = _row(line, form, where)
        require_new(row, where, seen)
        question = read_question(row, form, where)
        named = form != "blimp" or question.paradigm
        questions.append(question if named else replace(question, paradigm=_one_line(Path(name).stem, where)))
    if not questions:
        raise RelmError(f"{file}: has no question; give a file with a JSON object on each line, or a zip archive of such files")
    return questions, found


def _lines(file: Path, content: bytes) -> Iterator[tuple[str, str, Any]]:
    """Yield file name, place for messages, and content of each question: the text of a line, or the object of a row."""
    if content.startswith(PARQUET):
        columns = parse_parquet(content, str(file))
        for number, values in enumerate(zip(*columns.values(), strict=True), 1):
            yield str(file), f"{file}, row {number}", dict(zip(columns, values, strict=True))
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
            for member in _wanted(file, archive, content):
                with archive.open(member) as unpacked:
                    yield f"{file}/{member.filename}", b"".join(iter(lambda: unpacked.read(BLOCK), b""))
    except FAULTS as error:
        reason = clip(str(error)) or type(error).__name__
        raise RelmError(f"{file}: the zip archive cannot be read ({reason}); download it again") from None


def _wanted(file: Path, archive: zipfile.ZipFile, content: bytes) -> list[zipfile.ZipInfo]:
    """Return the members with questions, by name."""
    end = content.rfind(b"PK\5\6")
    if int.from_bytes(content[end + 10 : end + 12], "little") != min(len(archive.infolist()), 0xFFFF):
        raise zipfile.BadZipFile("its directory has another count of files")
    for member in archive.infolist():  # one whose name is damaged would be left out, but zipfile compares it with the header
        archive.open(member).close()
    wanted = [each for each in archive.infolist() if each.filename.endswith(".jsonl")]
    wanted = sorted((each for each in wanted if not each.filename.startswith("__MACOSX/")), key=lambda each: each.filename)
    if strange := next((each.filename for each in wanted if find_control_character(each.filename)), None):
        raise RelmError(f"{file}: the zip archive has a file named {strange[:80]!r}, expected one line of text; rename it")
    if double := find_repeated(each.filename for each in wanted):
        raise RelmError(f"{file}: the zip archive has {double:.80} twice; download it again")
    require_proportion(sum(each.file_size for each in wanted), len(content), str(file))
    return wanted


def _decode(name: str, content: bytes) -> str:
    try:
        return content.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise RelmError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def _row(line: str | dict[str, Any], form: str, where: str) -> dict[str, Any]:
    """Return the object on a line, or that of a row."""
    expected = f"expected an object with the keys of the format {form}"
    row = parse_json(line, where, expected) if isinstance(line, str) else line
    if not isinstance(row, dict):
        raise RelmError(f"{where}: {expected}, found {type(row).__name__}")
    return row


def read_question(line: str | dict[str, Any], form: str, where: str) -> Question:
    """Return the question on a line, or in the object that a line or a row has."""
    question = READERS[form](_row(line, form, where), where)
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
    if len(endings) != ENDINGS:
        raise RelmError(f"{where}: has {len(endings)} endings, expected {ENDINGS}; correct the line or delete it")
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
    paradigm = _one_line(_text(row, "UID", where), where) if "UID" in row else ""
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
    if len(texts) != len(labels):
        raise RelmError(f"{where}: has {len(texts)} choices and {len(labels)} labels, expected as many; correct the line")
    if len(texts) not in CHOICES_OF_ARC:
        raise RelmError(f"{where}: has {len(texts)} choices, expected 3 to 5; correct the line or delete it")
    if (double := find_repeated(labels)) is not None:
        raise RelmError(f"{where}: has the label {double!r:.80} twice, expected another for each choice; correct the line")
    if key not in labels:
        expected = escape_controls(", ".join(labels))[:200]
        raise RelmError(f"{where}: 'answerKey' is {key[:80]!r}, expected the label of a choice: {expected}")
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


def _one_line(name: str, where: str) -> str:
    """Return the name of a paradigm, which begins names of figures."""
    if find_control_character(name):
        raise RelmError(f"{where}: expected one line of text as the paradigm, found {name[:80]!r}; correct it")
    return name


def _texts(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = _value(row, key, where)
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise RelmError(f"{where}: expected a list of texts under {key!r}, none of them empty, found {clip(str(value), 80)}")
    return tuple(value)


def _label(row: Mapping[str, Any], key: str, where: str) -> int:
    """Return a number, which some copies of the data have as text."""
    value = _value(row, key, where)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,9}", str(value)):
        raise RelmError(
            f"{where}: expected the number of the right choice, from 0 on, under {key!r}, found {clip(str(value), 80)!r}"
        )
    return int(value)


def _value(row: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in row:
        found = escape_controls(", ".join(map(str, row)))[:200]
        raise RelmError(f"{where}: has no {key!r}, found the keys {found}; is multiple_choice.format that of the file?")
    return row[key]
