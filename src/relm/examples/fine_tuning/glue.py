"""Read the files of the nine GLUE tasks (Wang et al. 2019, arXiv 1804.07461): texts or pairs, each with a class or a score.

A file comes from the hub's copy `nyu-mll/glue`, as Parquet, or from the original release, as TSV without quoting. Classes have
the numbers of the hub's copy.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from relm.corpus.download.source_faults import clip
from relm.corpus.parquet_content import PARQUET, parse_parquet
from relm.corpus.published_rows import find_repeated, require_new
from relm.errors import RelmError

LOWEST_SCORE, HIGHEST_SCORE = 0.0, 5.0
_WRITTEN_SCORE = re.compile(r"[0-9]+(\.[0-9]*)?")


@dataclass(frozen=True)
class GlueTask:
    """One task: the columns of its files, its classes, and its figures."""

    title: str
    columns: tuple[str, ...]
    """Columns of the one or two texts in the hub's copy."""
    classes: tuple[str, ...]
    """Names of the classes by number; empty: the label is a score from 0 to 5."""
    metrics: tuple[str, ...]
    """Figures that the paper reports, by their names in `relm.evaluation.fine_tuning.glue_scoring.METRICS`."""
    tsv: tuple[str, ...]
    """Columns of the texts and of the label in the original release."""
    tsv_header: tuple[str, ...] | None = None
    """Columns of a file without a header; None: the first line names them."""

    @property
    def labels(self) -> int:
        """Return the number of the model's outputs: one per class, or one for a score."""
        return len(self.classes) or 1


_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
TASKS: dict[str, GlueTask] = {
    "cola": GlueTask(
        title="the Corpus of Linguistic Acceptability",
        columns=("sentence",),
        classes=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
        tsv=("sentence", "label"),
        tsv_header=("source", "label", "original_label", "sentence"),
    ),
    "sst2": GlueTask(
        title="the Stanford Sentiment Treebank",
        columns=("sentence",),
        classes=("negative", "positive"),
        metrics=("accuracy",),
        tsv=("sentence", "label"),
    ),
    "mrpc": GlueTask(
        title="the Microsoft Research Paraphrase Corpus",
        columns=_PAIR,
        classes=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        tsv=("#1 String", "#2 String", "Quality"),
    ),
    "stsb": GlueTask(
        title="the Semantic Textual Similarity Benchmark",
        columns=_PAIR,
        classes=(),
        metrics=("pearson_correlation", "spearman_correlation"),
        tsv=(*_PAIR, "score"),
    ),
    "qqp": GlueTask(
        title="Quora Question Pairs",
        columns=("question1", "question2"),
        classes=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        tsv=("question1", "question2", "is_duplicate"),
    ),
    "mnli": GlueTask(
        title="the Multi-Genre Natural Language Inference Corpus",
        columns=("premise", "hypothesis"),
        classes=("entailment", "neutral", "contradiction"),
        metrics=("accuracy",),
        tsv=(*_PAIR, "gold_label"),
    ),
    "qnli": GlueTask(
        title="Question Natural Language Inference",
        columns=("question", "sentence"),
        classes=_ENTAILMENT,
        metrics=("accuracy",),
        tsv=("question", "sentence", "label"),
    ),
    "rte": GlueTask(
        title="Recognizing Textual Entailment",
        columns=_PAIR,
        classes=_ENTAILMENT,
        metrics=("accuracy",),
        tsv=(*_PAIR, "label"),
    ),
    "wnli": GlueTask(
        title="Winograd Natural Language Inference",
        columns=_PAIR,
        classes=_ENTAILMENT[::-1],
        metrics=("accuracy",),
        tsv=(*_PAIR, "label"),
    ),
}


class LabelledTexts(NamedTuple):
    """The examples of a file, in its order."""

    first: list[str]
    second: list[str] | None
    """None: the task has single texts."""
    labels: list[int] | list[float]
    """Classes or scores."""

    def head(self, count: int | None) -> "LabelledTexts":
        """Return the first examples; None: all."""
        second = None if self.second is None else self.second[:count]
        return LabelledTexts(self.first[:count], second, self.labels[:count])


def parse_glue(content: bytes, task: str, name: str) -> LabelledTexts:
    """Return the examples of a task's file, Parquet or TSV; `name` is the file's, for messages.

    Raises RelmError with the row or line if the file is damaged or another task's, or an example lacks a text or a label.
    """
    found = TASKS[task]
    is_parquet = content.startswith(PARQUET)
    columns = _parquet_columns(content, task, name) if is_parquet else _tsv_columns(content, task, name)
    if not columns[0]:
        raise RelmError(f"{name}: has no examples; give a file of GLUE's {task}")
    first_line = 1 if is_parquet or found.tsv_header else 2
    place = f"{name}, {'row' if is_parquet else 'line'}"
    for column, values in zip(found.columns, columns, strict=False):
        for number, value in enumerate(values, first_line):
            if not isinstance(value, str):
                raise RelmError(f"{place} {number}: {column}: expected a text, found {value!r:.80}; correct the file")
    read = _class_reader(found.classes) if found.classes else _read_score
    labels = [read(value, f"{place} {number}") for number, value in enumerate(columns[-1], first_line)]
    return LabelledTexts(columns[0], columns[1] if len(columns) == 3 else None, labels)


def _parquet_columns(content: bytes, task: str, name: str) -> list[list[Any]]:
    """Return the columns of the texts and of the label."""
    columns, wanted = parse_parquet(content, name), (*TASKS[task].columns, "label")
    _require_columns(list(columns), wanted, task, name)
    _require_new_rows(list(columns), zip(*columns.values(), strict=True), f"{name}, row", first=1)
    return [columns[column] for column in wanted]


def _tsv_columns(content: bytes, task: str, name: str) -> list[list[Any]]:
    """Return the columns of the texts and of the label."""
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise RelmError(
            f"{name}: expected Parquet or UTF-8, found another byte at {error.start}; give a file of GLUE's {task}"
        ) from None
    found = TASKS[task]
    rows = [line.removesuffix("\r").split("\t") for line in lines]
    header = list(found.tsv_header or rows[0])
    _require_columns(header, found.tsv, task, name)
    first = 0 if found.tsv_header else 1
    for number, row in enumerate(rows[first:], first + 1):
        if len(row) != len(header):
            raise RelmError(
                f"{name}, line {number}: expected {len(header)} columns ({clip(', '.join(header))}), found {len(row)}; correct "
                f"the line, or give another file of GLUE's {task}"
            )
    _require_new_rows(header, rows[first:], f"{name}, line", first + 1)
    places = [header.index(column) for column in found.tsv]
    return [[row[place] for row in rows[first:]] for place in places]


def _require_new_rows(header: Sequence[str], rows: Iterable[Sequence[Any]], place: str, first: int) -> None:
    """Raise RelmError if a row with a number repeats an earlier one."""
    seen: dict[bytes, str] = {}
    for number, row in enumerate(rows, first):
        require_new(dict(zip(header, row, strict=True)), f"{place} {number}", seen)


def _require_columns(found: Sequence[str], wanted: Sequence[str], task: str, name: str) -> None:
    """Raise RelmError if a file lacks a column, or has one twice."""
    if missing := [column for column in wanted if column not in found]:
        raise RelmError(
            f"{name}: lacks the column {missing[0]!r}, found {', '.join(map(str, found))!r:.200}; give a file of GLUE's {task}"
        )
    if (double := find_repeated(found)) is not None:
        raise RelmError(f"{name}: has the column {double!r:.80} twice; give a file of GLUE's {task}")


def _class_reader(classes: Sequence[str]) -> Callable[[Any, str], int]:
    """Return a function from a label, a number or a name, to the number of its class."""
    numbers = {written: number for number, label in enumerate(classes) for written in (number, str(number), label)}
    expected = ", ".join(f"{number} ({label})" for number, label in enumerate(classes))

    def read(value: Any, place: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str) or value not in numbers:
            raise RelmError(
                f"{place}: label: expected one of {expected}, found {value!r:.80}; a test split without labels cannot be scored"
            )
        return numbers[value]

    return read


def _read_score(value: Any, place: str) -> float:
    """Return a score."""
    try:
        score = math.nan if isinstance(value, str) and not _WRITTEN_SCORE.fullmatch(value) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if isinstance(value, bool) or not LOWEST_SCORE <= score <= HIGHEST_SCORE:
        raise RelmError(
            f"{place}: label: expected a score from {LOWEST_SCORE:g} to {HIGHEST_SCORE:g}, found {value!r:.80}; a test split "
            "without labels cannot be scored"
        )
    return score
