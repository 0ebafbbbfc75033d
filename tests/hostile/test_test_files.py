"""Published test files that are damaged or made to harm: one plain sentence with file and line, or the right examples."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relm.corpus import published_rows
from relm.errors import RelmError
from relm.evaluation.choices import choice_formats
from relm.evaluation.choices.choice_formats import read_questions
from relm.evaluation.evaluated_items import read_items
from relm.evaluation.evaluated_text import read_passages
from relm.examples.fine_tuning.glue import parse_glue
from relm.examples.fine_tuning.squad import parse_squad

SURFACE = "published test files"
HELLASWAG = {"activity_label": "A", "ctx_a": "B c.", "ctx_b": "d", "ctx": "B c. d", "endings": list("wxyz"), "label": 1}
PIQA = {"goal": "Open a jar.", "sol1": "Turn it.", "sol2": "Eat it.", "label": 0}
LAMBADA = {"text": "one two three"}
FORMS: dict[str, dict[str, Any]] = {"hellaswag": HELLASWAG, "piqa": PIQA, "lambada": LAMBADA}


def arc(texts: str = "wxyz", labels: str = "ABCD", **others: Any) -> dict[str, Any]:
    return {"id": "1", "question": "Q?", "answerKey": "A", "choices": {"text": [*texts], "label": [*labels]}, **others}


FORMS["arc"] = arc()
SQUAD_ROW = {"id": "1", "question": "Q?", "answers": [{"text": "cat", "answer_start": 4}]}


def squad(**changed: Any) -> dict[str, Any]:
    return {"data": [{"paragraphs": [{"context": "The cat sat.", "qas": [{**SQUAD_ROW, **changed}]}]}]}


def lines(*rows: dict[str, Any] | str) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def twice(row: dict[str, Any], key: str) -> str:
    """Return a line that has a key twice, with two values."""
    return json.dumps(row)[:-1] + f", {json.dumps(key)}: {json.dumps(row[key])}}}"


def parquet(names: list[str], columns: list[Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in columns], names=names), file)
    return file.getvalue()


def not_utf8() -> Any:
    return pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))


def nested_twice() -> bytes:
    """Return questions of ARC whose choices have two fields of one name."""
    texts, labels = pa.array([["a", "b", "c"]]), pa.array([["A", "B", "C"]])
    choices = pa.StructArray.from_arrays([texts, labels, labels], names=["text", "label", "label"])
    return parquet(["question", "answerKey", "choices"], [["Q?"], ["A"], choices])


MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
RTE = "index\tsentence1\tsentence2\tlabel\n"
SURROGATE = "half of a surrogate pair ('\\ud800'), which is not text"

# Format, content -> a part of the error.
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "MRPC: a column too many": (
        "mrpc",
        f"{MRPC}1\t1\t2\tHe said\thello\tHe said hello\n".encode(),
        "x, line 2: expected 5 columns",
    ),
    "MRPC: a column too few": ("mrpc", f"{MRPC}1\t1\t2\tHe said\n".encode(), "x, line 2: expected 5 columns"),
    "CoLA: a sentence with a tab": ("cola", b"a\t1\t\tHe\tsaid.\n", "x, line 1: expected 4 columns"),
    "GLUE: a column twice": ("sst2", b"sentence\tlabel\tlabel\na\t1\t0\n", "x: has the column 'label' twice"),
    "GLUE: a line twice": (
        "rte",
        f"{RTE}0\ta\tb\tentailment\n".encode() + b"0\ta\tb\tentailment\n",
        "x, line 3: repeats x, line 2",
    ),
    "GLUE: a row twice": (
        "sst2",
        parquet(["sentence", "label", "idx"], [["a", "a"], [1, 1], [0, 0]]),
        "x, row 2: repeats x, row 1",
    ),
    "GLUE: a score of other digits": (
        "stsb",
        "sentence1\tsentence2\tscore\na\tb\t٣\n".encode(),
        "x, line 2: label: expected a score from 0 to 5, found '٣'",
    ),
    "GLUE: a score with an underscore": (
        "stsb",
        b"sentence1\tsentence2\tscore\na\tb\t0_1\n",
        "x, line 2: label: expected a score from 0 to 5, found '0_1'",
    ),
    "GLUE: a score of 5,000 digits": (
        "stsb",
        f"sentence1\tsentence2\tscore\na\tb\t{'9' * 5000}\n".encode(),
        "x, line 2: label: expected",
    ),
    "GLUE: text that is not UTF-8 in parquet": (
        "sst2",
        parquet(["sentence", "label"], [not_utf8(), [1]]),
        "x: damaged, or not Parquet",
    ),
    "parquet: a column twice": (
        "sst2",
        parquet(["sentence", "label", "label"], [["a"], [1], [0]]),
        "x: has the column 'label' twice",
    ),
    "parquet: a column of questions twice": (
        "piqa",
        parquet([*PIQA, "label"], [["a"], ["b"], ["c"], [0], [1]]),
        "x: has the column 'label' twice",
    ),
    "parquet: a column of items twice": ("items:glue", parquet(["a", "a"], [["b"], ["c"]]), "x: has the column 'a' twice"),
    "parquet: a field twice": ("arc", nested_twice(), "x: has the column 'label' twice"),
    "parquet: question that is not UTF-8": (
        "piqa",
        parquet([*PIQA], [not_utf8(), ["b"], ["c"], [0]]),
        "x: damaged, or not Parquet",
    ),
    "parquet: a date beyond all calendars": (
        "piqa",
        parquet([*PIQA, "d"], [["a"], ["b"], ["c"], [0], pa.array([1 << 61], pa.timestamp("us"))]),
        "x: damaged, or not Parquet",
    ),
    "parquet: a bomb": (
        "piqa",
        parquet([*PIQA], [["a" * 3000] * 1000, ["b"] * 1000, ["c"] * 1000, [0] * 1000]),
        "x: unpacks to",
    ),
    "ARC: two choices": ("arc", lines(arc("wx", "AB")), "x, line 1: has 2 choices, expected 3 to 5"),
    "ARC: six choices": ("arc", lines(arc("uvwxyz", "ABCDEF")), "x, line 1: has 6 choices, expected 3 to 5"),
    "ARC: a label too many": ("arc", lines(arc("wxy", "ABCD")), "x, line 1: has 3 choices and 4 labels"),
    "ARC: a label too few": ("arc", lines(arc("wxyz", "ABC")), "x, line 1: has 4 choices and 3 labels"),
    "ARC: a label twice": ("arc", lines(arc("wxyz", "AABC")), "x, line 1: has the label 'A' twice"),
    "ARC: a question twice": ("arc", lines(arc(), arc(id="2"), arc()), "x, line 3: repeats x, line 1"),
    "ARC: a label of 5,000 digits": ("arc", lines(arc(answerKey="9" * 5000)), "x, line 1: 'answerKey' is"),
    "HellaSwag: three endings": (
        "hellaswag",
        lines({**HELLASWAG, "endings": list("xyz")}),
        "x, line 1: has 3 endings, expected 4",
    ),
    "HellaSwag: five endings": (
        "hellaswag",
        lines({**HELLASWAG, "endings": list("vwxyz")}),
        "x, line 1: has 5 endings, expected 4",
    ),
    "HellaSwag: a line twice": (
        "hellaswag",
        lines({**HELLASWAG, "ind": 3}, {**HELLASWAG, "ind": 3}),
        "x, line 2: repeats x, line 1",
    ),
    "SQuAD: an id twice": (
        "squad",
        json.dumps({"data": squad()["data"] * 2}).encode(),
        "x: data[1].paragraphs[0].qas[0].id: expected a unique id, found '1' as in data[0]",
    ),
    "SQuAD: a surrogate": ("squad", json.dumps(squad(question="a\ud800")).encode(), SURROGATE),
    "SQuAD: a key twice": (
        "squad",
        json.dumps(squad()).replace('"id": "1"', '"id": "1", "id": "2"').encode(),
        "x: has the key 'id' twice",
    ),
    "SQuAD: 100,000 brackets": ("squad", b"[" * 100_000, "x: not JSON (nested too deeply)"),
    "SQuAD: an offset of 5,000 digits": (
        "squad",
        json.dumps(squad()).replace(": 4}", f": {'9' * 5000}}}").encode(),
        "x: not JSON (a number of 5,000 digits)",
    ),
    **{
        f"{form}: a surrogate": (form, lines(row, {**row, next(iter(row)): "a\ud800"}), f"x, line 2: has {SURROGATE}")
        for form, row in FORMS.items()
    },
    **{
        f"{form}: 100,000 brackets": (form, lines(row, "[" * 100_000), "x, line 2: not JSON (nested too deeply)")
        for form, row in FORMS.items()
    },
    **{
        f"{form}: lists 5,000 deep": (
            form,
            lines({**row, "n": 0}).replace(b'"n": 0', b'"n": ' + b"[" * 500 + b"]" * 500),
            "x, line 1: not JSON (nested too deeply)",
        )
        for form, row in FORMS.items()
    },
    **{
        f"{form}: a number of 5,000 digits": (
            form,
            lines({**row, "n": 7}).replace(b'"n": 7', b'"n": ' + b"7" * 5000),
            "x, line 1: not JSON (a number of 5,000 digits)",
        )
        for form, row in FORMS.items()
    },
    **{
        f"{form}: a label of 5,000 digits as text": (
            form,
            lines({**FORMS[form], "label": "7" * 5000}),
            "x, line 1: label: expected the number of the right choice",
        )
        for form in ("hellaswag", "piqa")
    },
    **{
        f"{form}: a key twice": (
            form,
            lines(row, twice(row, next(iter(row)))),
            f"x, line 2: has the key {next(iter(row))!r} twice",
        )
        for form, row in FORMS.items()
    },
}
# Format, content -> the count of examples. The first three are in the official files.
SURVIVED: dict[str, tuple[str, bytes, int]] = {
    "LAMBADA: a passage twice": ("lambada", lines(LAMBADA, LAMBADA), 2),
    "MRPC: an odd quote": ("mrpc", f'{MRPC}1\t1\t2\t"He said\thello\n'.encode(), 1),
    "QQP: an empty question": ("qqp", b"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta\t\t0\n", 1),
    "SST-2: a line twice, without a number": ("sst2", b"sentence\tlabel\na\t1\na\t1\n", 2),
    "ARC: three choices": ("arc", lines(arc("wxy", "ABC")), 1),
    "ARC: five choices": ("arc", lines(arc("vwxyz", "ABCDE")), 1),
    "ARC: labels that are digits": ("arc", lines(arc(labels="1234", answerKey="2")), 1),
    "ARC: one answer twice": ("arc", lines(arc("wwyz")), 1),
    "HellaSwag: a label that is text": ("hellaswag", lines({**HELLASWAG, "label": "3"}), 1),
    "LAMBADA: both halves of a surrogate pair": ("lambada", b'{"text": "one \\ud83d\\ude00 two"}\n', 1),
    "LAMBADA: a backslash before ud800": ("lambada", b'{"text": "one \\\\ud800 two"}\n', 1),
}


def read(form: str, content: bytes) -> int:
    """Write the file x, read it, and return the count of its examples."""
    file = Path("x")
    file.write_bytes(content)
    readers: dict[str, Callable[[], Any]] = {
        "lambada": lambda: read_passages(file, None, "text", None)[0],
        "squad": lambda: parse_squad(content, "x"),
        "items:glue": lambda: read_items(file, "glue", "text")[0],
        **dict.fromkeys(choice_formats.READERS, lambda: read_questions(file, None, form, None)[0]),
    }
    return len(readers[form]()) if form in readers else len(parse_glue(content, form, "x").labels)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Limits of a test's size in place of some MiB."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published_rows, "LARGEST_UNPACKED", 1 << 20)


@pytest.mark.parametrize(("form", "content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_hostile_file_is_refused_in_one_sentence(form: str, content: bytes, message: str) -> None:
    with pytest.raises(RelmError) as refused:
        read(form, content)
    said = str(refused.value)
    assert message in said
    assert said.startswith("x")
    assert len(said) < 500
    said.encode()  # a terminal cannot show half of a surrogate pair
    assert "\x1b" not in said
    assert "\n" not in said


@pytest.mark.parametrize(("form", "content", "count"), SURVIVED.values(), ids=SURVIVED)
def test_the_examples_of_a_strange_file_are_read(form: str, content: bytes, count: int) -> None:
    assert read(form, content) == count
