"""GLUE's files of both formats are read, or rejected with the row and what is wrong; the sentences are this project's own."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glue_files import EXAMPLES, write_parquet, write_tsv
from relm.errors import RelmError
from relm.evaluation.fine_tuning.glue_scoring import METRICS
from relm.examples.fine_tuning.glue import TASKS, LabelledTexts, parse_glue


def examples_of(task: str) -> LabelledTexts:
    """Return the examples as they should be read."""
    rows = EXAMPLES[task]
    second = [row[1] for row in rows] if len(rows[0]) == 3 else None
    return LabelledTexts([row[0] for row in rows], second, [row[-1] for row in rows])


def rounded(found: LabelledTexts) -> LabelledTexts:
    """Return scores, which the hub's copy has in float32, with three digits."""
    return found._replace(labels=[round(label, 3) for label in found.labels])


@pytest.mark.parametrize("task", TASKS)
def test_both_formats_of_a_task_give_its_texts_and_labels(task: str, tmp_path: Path) -> None:
    for file in (
        write_parquet(tmp_path / "train.parquet", task),
        write_tsv(tmp_path / "train.tsv", task),
        write_tsv(tmp_path / "windows.tsv", task, newline="\r\n"),
    ):
        found = rounded(parse_glue(file.read_bytes(), task, file.name))
        assert found == examples_of(task), file.name
        assert type(found.labels[0]) is (float if task == "stsb" else int)


def test_a_mark_of_byte_order_before_the_header_is_left_out(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + write_tsv(tmp_path / "a.tsv", "mrpc").read_bytes()
    assert parse_glue(content, "mrpc", "a.tsv") == examples_of("mrpc")


def test_quotes_change_nothing(tmp_path: Path) -> None:
    content = write_tsv(tmp_path / "a.tsv", "rte", [('He said "no', 'She said "yes"', 1)]).read_bytes()
    found = parse_glue(content, "rte", "a.tsv")
    assert found == LabelledTexts(['He said "no'], ['She said "yes"'], [1])


def test_the_first_examples_are_taken() -> None:
    assert examples_of("mnli").head(2) == LabelledTexts(
        ["The ferry leaves at noon."] * 2, ["The ferry leaves in the daytime.", "The ferry is full of tourists."], [0, 1]
    )
    assert examples_of("cola").head(None) == examples_of("cola")


def test_each_task_has_figures_and_the_counts_of_outputs_that_the_paper_states() -> None:
    assert {task: found.labels for task, found in TASKS.items()} == {
        "cola": 2,
        "sst2": 2,
        "mrpc": 2,
        "stsb": 1,
        "qqp": 2,
        "mnli": 3,
        "qnli": 2,
        "rte": 2,
        "wnli": 2,
    }
    assert all(set(found.metrics) <= set(METRICS) for found in TASKS.values())
    assert [task for task, found in TASKS.items() if found.metrics == ("accuracy", "f1")] == ["mrpc", "qqp"]


NONE = pa.array([], pa.string())
PAIR = {"sentence1": ["a"], "sentence2": ["b"]}
PARQUET_FAULTS = {
    "another task": ("rte", {"sentence": ["a"], "label": [1]}, r"x.parquet: lacks the column 'sentence1', found 'sentence"),
    "no label": ("sst2", {"sentence": ["a"]}, r"x.parquet: lacks the column 'label'"),
    "a test split": ("sst2", {"sentence": ["a", "b"], "label": [1, -1]}, r"row 2: label: expected one of 0 \(negat"),
    "a third class": ("cola", {"sentence": ["a"], "label": [2]}, r"row 1: label: expected one of 0 \(unac.*, found 2"),
    "no text": ("qnli", {"question": ["a", None], "sentence": ["b", "c"], "label": [0, 1]}, r"row 2: question: expected"),
    "a number": ("sst2", {"sentence": [3], "label": [1]}, r"row 1: sentence: expected a text, found 3; correct"),
    "a list": ("sst2", {"sentence": ["a"], "label": [[1]]}, r"row 1: label: expected one of .*, found \[1\]"),
    "a score beyond 5": ("stsb", {**PAIR, "label": [5.5]}, r"row 1: label: expected a score from 0 to 5, found 5.5; a test"),
    "no score": ("stsb", {**PAIR, "label": [None]}, r"row 1: label: expected a score .*, found None"),
    "no number": ("stsb", {**PAIR, "label": [float("nan")]}, r"row 1: label: expected a score .*, found nan"),
    "nothing": ("sst2", {"sentence": NONE, "label": NONE}, r"x.parquet: has no examples; give a file of GLUE's sst2"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PARQUET_FAULTS)
def test_a_parquet_file_with_a_fault_is_refused(fault: str, tmp_path: Path) -> None:
    task, columns, message = PARQUET_FAULTS[fault]
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(RelmError, match=message):
        parse_glue((tmp_path / "x.parquet").read_bytes(), task, "x.parquet")


TEXT_FAULTS = {
    "cut": ("sst2", b"PAR1 and nothing", r"^x: damaged, or not Parquet"),
    "bytes": (
        "sst2",
        b"sentence\tlabel\n\xff\t1\n",
        r"^x: expected Parquet or UTF-8, found another byte at 15; give a file of GLUE's sst2",
    ),
    "another header": (
        "rte",
        b"sentence\tlabel\na\t1\n",
        r"^x: lacks the column 'sentence1', found 'sentence, label'; give a file",
    ),
    "a short line": ("sst2", b"sentence\tlabel\na\t1\nb\n", r"^x, line 3: expected 2 columns \(sentence, label\), found 1"),
    "a label": (
        "sst2",
        b"sentence\tlabel\na\tgood\n",
        r"^x, line 2: label: expected one of 0 \(nega",
    ),
    "CoLA with a header": (
        "cola",
        b"index\tsentence\n0\ta\n",
        r"^x, line 1: expected 4 columns \(source, label, orig",
    ),
    "a header alone": ("sst2", b"sentence\tlabel\n", r"^x: has no examples; give a file of GLUE's sst2"),
    "nothing": ("sst2", b"", r"^x: lacks the column 'sentence'"),
    "a score": ("stsb", b"sentence1\tsentence2\tscore\na\tb\tmuch\n", r"^x, line 2: label: expected a score .*, found 'much'"),
}


@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_a_text_file_with_a_fault_is_refused(fault: str) -> None:
    task, content, message = TEXT_FAULTS[fault]
    with pytest.raises(RelmError, match=message):
        parse_glue(content, task, "x")
