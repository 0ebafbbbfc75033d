"""Examples for fine-tuning on the class or the score of texts: make the table of a task's file, and read it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from relm.examples.columns import Column
from relm.examples.contract import Batch, Integers, Vocabulary
from relm.examples.described_tables import TableSource, open_table
from relm.examples.documents import counts_of
from relm.examples.draws import Draws, below, drawn, drawn_tokens
from relm.examples.fine_tuning.glue import HIGHEST_SCORE, parse_glue
from relm.examples.sharded_tables import ExampleTables, open_tables
from relm.examples.storage import dtype_of
from relm.examples.text_pairs import encode_pairs, model_inputs
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.objectives import Objective

# Texts whose sequences are in memory at once.
TOGETHER = 4096
LABEL = "label"


def write_labelled_table(
    file: Path, tokenizer: Path, output: Path, objective: Objective, task: str, limit: int | None = None
) -> str:
    """Encode the examples of a file of GLUE as one table, `output`, and its sidecar; return a sentence.

    Columns: `input_ids` (L), `length`, `second_start`, as in `relm.examples.text_pairs.PairSequences`, and `label`, the number
    of the class (int8) or the score (float32). `limit` is the number of examples, from the first on; None: all.
    """
    started = perf_counter()
    content = file.read_bytes()
    texts, loaded = parse_glue(content, task, str(file)).head(limit), load_tokenizer(tokenizer)
    every = [*texts.first, *(texts.second or ())]
    source = TableSource(hashlib.sha256(content).hexdigest(), len(texts.first), *counts_of(every))
    columns, cut = labelled_columns(objective, loaded.vocabulary_size), 0
    with open_table(output, objective, loaded, source, columns) as table:
        for begin in range(0, len(texts.first), TOGETHER):
            some = slice(begin, begin + TOGETHER)
            second = None if texts.second is None else texts.second[some]
            found = encode_pairs(loaded, texts.first[some], second, objective.sequence_length)
            labels = np.array(texts.labels[some])
            rows = {"input_ids": found.input_ids, "length": found.lengths, "second_start": found.second_starts, LABEL: labels}
            table.append(rows, found.lengths)
            cut += int((found.lengths == objective.sequence_length).sum())
    return (
        f"encoded {table.examples:,} examples, of which {cut:,} fill the {objective.sequence_length} tokens of a sequence or "
        f"were truncated to them; {table.examples / (perf_counter() - started):,.0f} sequences/s"
    )


def labelled_columns(objective: Objective, vocabulary_size: int) -> list[Column]:
    """Return the columns of a table of labelled texts."""
    kind = dtype_of(vocabulary_size)
    classes = count_classes(objective)
    label = Column(LABEL, "int8", below=classes) if classes > 1 else Column(LABEL, "float32")
    positions = [Column(name, "uint16") for name in ("length", "second_start")]
    return [Column("input_ids", kind, objective.sequence_length, vocabulary_size), *positions, label]


def count_classes(objective: Objective) -> int:
    """Return the number of classes of an objective's one term; 1 for a score."""
    (classes,) = objective.classes.values()
    return classes


class LabelledExamples:
    """The labelled texts of one split, by index."""

    def __init__(self, tables: ExampleTables, objective: Objective) -> None:
        """Set up the reading of tables with the columns of `write_labelled_table`."""
        self.tables = tables
        self.objective = objective

    def __len__(self) -> int:
        return len(self.tables)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return the texts with these indices, the same in all epochs."""
        ids, lengths, starts, labels = (
            self.tables.rows(name, indices) for name in ("input_ids", "length", "second_start", LABEL)
        )
        return {**model_inputs(ids, lengths, starts), **_labels(self.objective, labels)}


def _labels(objective: Objective, values: Any) -> Mapping[str, Any]:
    """Return the labels by their name in a batch, classes as int64 and scores as float32."""
    (name,) = objective.declaration.labels.values()
    return {name: values.astype(np.int64 if count_classes(objective) > 1 else np.float32)}


def open_labelled(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> LabelledExamples:
    """Open the labelled texts of a split as `relm.examples.builders.open_examples` does; nothing is drawn."""
    return LabelledExamples(open_tables(manifest, split, objective, check_content), objective)


def generate_labelled(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    """Return a batch of random pairs without padding, one for each key, with random labels."""
    length, special, classes = objective.sequence_length, vocabulary.special, count_classes(objective)
    tokens = drawn_tokens(keys, length, vocabulary.size, last=special.sep, first=special.cls)
    inputs = model_inputs(tokens, np.full(len(keys), length), np.full(len(keys), length // 2))
    labels = below(drawn(keys, length), classes if classes > 1 else int(HIGHEST_SCORE) + 1)
    return {**inputs, **_labels(objective, labels)}


def labelled_lengths(objective: Objective) -> tuple[int, int, int]:
    """Return the lengths of an example, which has no logits over the vocabulary."""
    return objective.sequence_length, 0, 0
