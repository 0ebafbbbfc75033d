"""GLUE's files for tests, in the formats of the hub's copy and of the original release; every sentence is this project's own.

No copy of GLUE was at hand, so no example of it stands here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from relm.examples.fine_tuning.glue import TASKS

Row = tuple[Any, ...]

# Task -> its texts, and the number of the class or the score.
EXAMPLES: dict[str, list[Row]] = {
    "cola": [
        ("The baker has sold every loaf.", 1), ("The baker every sold has loaf.", 0), ("Which of the boats did you paint?", 1),
        ("Which of the boats did you paint it?", 0), ("She seems to have left.", 1), ("She seems that left.", 0),
    ],
    "sst2": [
        ("a warm and patient film", 1), ("two hours that feel like four", 0), ("the cast is a delight", 1),
        ("a tired copy of a tired plot", 0),
    ],
    "mrpc": [
        ("The mayor opened the bridge on Monday.", "On Monday the bridge was opened by the mayor.", 1),
        ("The mayor opened the bridge on Monday.", "The bridge is older than the mayor.", 0),
        ('"Rates will fall," the bank said.', "The bank said that rates would fall.", 1),
        ("Sales rose by 3 per cent in May.", "Sales rose by 30 per cent in March.", 0),
    ],
    "stsb": [
        ("A dog runs on a beach.", "A dog is running along the beach.", 4.8),
        ("A man cooks rice.", "A man is making soup.", 2.25),
        ("A girl plays a flute.", "A truck stands in the rain.", 0.0), ("Two cats sleep.", "Two cats are sleeping.", 5.0),
        ("A woman cuts bread.", "A woman slices an apple.", 1.8),
    ],
    "qqp": [
        ("How do I learn to swim?", "What is a good way to learn swimming?", 1),
        ("How do I learn to swim?", "How deep is a swimming pool?", 0), ("Why is the sky blue?", "", 0),
        ("Is it safe to drink rain?", "Can one drink rain water?", 1),
    ],
    "mnli": [
        ("The ferry leaves at noon.", "The ferry leaves in the daytime.", 0),
        ("The ferry leaves at noon.", "The ferry is full of tourists.", 1),
        ("The ferry leaves at noon.", "The ferry leaves at midnight.", 2),
        ("He owns three goats and a cow.", "He owns animals.", 0), ("He owns three goats.", "He has never owned a goat.", 2),
    ],
    "qnli": [
        ("When was the tower built?", "The tower was built in 1312, after the fire.", 0),
        ("When was the tower built?", "The tower is made of grey stone.", 1),
        ("Who rang the bell?", "A monk rang it daily.", 0),
        ("Who rang the bell?", "The bell weighs four tons.", 1),
    ],
    "rte": [
        ("The river rose by a metre and flooded two villages.", "Villages were flooded.", 0),
        ("The river rose by a metre and flooded two villages.", "The river dried up.", 1),
        ("Anna, who was born in Lyon, moved to Paris.", "Anna was born in Lyon.", 0),
        ("Anna, who was born in Lyon, moved to Paris.", "Anna was born in Paris.", 1),
    ],
    "wnli": [
        ("The cup did not fit into the box because it was too wide.", "The cup was too wide.", 1),
        ("The cup did not fit into the box because it was too wide.", "The box was too wide.", 0),
        ("Tom thanked Ben because he had helped.", "Ben had helped.", 1),
        ("Tom thanked Ben because he had helped.", "Tom had helped.", 0),
    ],
}  # fmt: skip
# Task -> columns of a file of the original release, with the value of those that are not read.
TSV_COLUMNS: dict[str, Sequence[str]] = {
    "cola": ("source", "label", "original_label", "sentence"),
    "sst2": ("sentence", "label"),
    "mrpc": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "stsb": ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"),
    "qqp": ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
    "mnli": ("index", "promptID", "pairID", "genre", "sentence1", "sentence2", "label1", "gold_label"),
    "qnli": ("index", "question", "sentence", "label"),
    "rte": ("index", "sentence1", "sentence2", "label"),
    "wnli": ("index", "sentence1", "sentence2", "label"),
}
# Tasks whose labels are names in the original release.
NAMED = ("mnli", "qnli", "rte")


def write_parquet(path: Path, task: str, rows: Sequence[Row] | None = None) -> Path:
    """Write a file like the hub's, of some examples or of all of the task; return its path."""
    examples = EXAMPLES[task] if rows is None else rows
    names = TASKS[task].columns
    columns = {name: pa.array([row[place] for row in examples], pa.string()) for place, name in enumerate(names)}
    kind = pa.int64() if TASKS[task].classes else pa.float32()
    columns |= {"label": pa.array([row[-1] for row in examples], kind), "idx": pa.array(range(len(examples)), pa.int32())}
    pq.write_table(pa.table(columns), path)
    return path


def write_tsv(path: Path, task: str, rows: Sequence[Row] | None = None, newline: str = "\n") -> Path:
    """Write a file like the original release's; return its path."""
    found, header = TASKS[task], TSV_COLUMNS[task]
    lines = [] if found.tsv_header else ["\t".join(header)]
    for row in EXAMPLES[task] if rows is None else rows:
        label = found.classes[row[-1]] if task in NAMED else f"{row[-1]:.3f}" if task == "stsb" else str(row[-1])
        values = dict(zip(found.tsv, (*row[:-1], label), strict=True))
        lines.append("\t".join(values.get(column, "x") for column in header))
    path.write_bytes((newline.join(lines) + newline).encode())
    return path
