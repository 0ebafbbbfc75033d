"""Examples for fine-tuning on answers that are spans of a paragraph: window a file of SQuAD, and read the table."""

import hashlib
from pathlib import Path
from time import perf_counter

import numpy as np

from relm.errors import RelmError
from relm.examples.columns import Column
from relm.examples.contract import Batch, Integers, Vocabulary
from relm.examples.described_tables import TableSource, open_table
from relm.examples.documents import counts_of
from relm.examples.draws import Draws, below, drawn, drawn_tokens
from relm.examples.fine_tuning.answer_windows import WindowLengths, window_questions
from relm.examples.fine_tuning.squad import first_questions, parse_squad
from relm.examples.sharded_tables import ExampleTables, open_tables
from relm.examples.storage import dtype_of
from relm.examples.text_pairs import model_inputs
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.objectives import Objective

# Column of a table -> field of `AnswerWindows`.
COLUMNS = {
    "input_ids": "input_ids",
    "length": "lengths",
    "context_start": "context_starts",
    "answer_start": "starts",
    "answer_end": "ends",
}
# Paragraphs whose windows are in memory at once.
TOGETHER = 64


def write_span_table(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, lengths: WindowLengths, limit: int | None = None
) -> str:
    """Window the questions of a SQuAD 1.1 file as one table, `output`, and its sidecar; return a sentence.

    Columns: `input_ids` (L), `length`, `context_start`, `answer_start`, `answer_end`, as in
    `relm.examples.fine_tuning.answer_windows.AnswerWindows`. `limit` is the number of questions, from the first on; None: all.
    """
    started = perf_counter()
    content = documents.read_bytes()
    paragraphs, loaded = first_questions(parse_squad(content, str(documents)), limit), load_tokenizer(tokenizer)
    texts = [paragraph.context for paragraph in paragraphs]
    source = TableSource(hashlib.sha256(content).hexdigest(), len(texts), *counts_of(texts))
    counts = {"questions": 0, "skipped": 0, "unanswered": 0}
    columns = span_columns(objective.sequence_length, loaded.vocabulary_size)
    with open_table(output, objective, loaded, source, columns) as table:
        for first in range(0, len(paragraphs), TOGETHER):
            asked, windows, skipped = window_questions(paragraphs[first : first + TOGETHER], loaded, lengths, labelled=True)
            table.append({name: getattr(windows, field) for name, field in COLUMNS.items()}, windows.lengths)
            counts["questions"] += len(asked)
            counts["skipped"] += skipped
            counts["unanswered"] += int((windows.ends == 0).sum())
        if not table.examples:
            raise RelmError(f"{documents}: no answer is at its offset; give a file of SQuAD 1.1, such as train-v1.1.json")
        table.counts = {**counts}
    return (
        f"windowed {counts['questions']:,} questions as {table.examples:,} sequences, {counts['unanswered']:,} of them without "
        f"the answer, and left out {counts['skipped']:,} questions whose answer is not at its offset; "
        f"{table.examples / (perf_counter() - started):,.0f} sequences/s"
    )


def span_columns(length: int, vocabulary_size: int) -> list[Column]:
    """Return the columns of a table of windows."""
    kind = dtype_of(vocabulary_size)
    positions = [Column(name, "uint16") for name in ("length", "context_start", "answer_start", "answer_end")]
    return [Column("input_ids", kind, length, vocabulary_size), *positions]


class SpanExamples:
    """The windows of one split, by index."""

    def __init__(self, tables: ExampleTables) -> None:
        """Set up the reading of tables with the columns of `write_span_table`."""
        self.tables = tables

    def __len__(self) -> int:
        return len(self.tables)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return the windows with these indices, the same in all epochs."""
        ids, lengths, starts, first, last = (self.tables.rows(name, indices) for name in COLUMNS)
        return {**model_inputs(ids, lengths, starts), "answer_positions": np.stack([first, last], 1).astype(np.int64)}


def open_spans(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> SpanExamples:
    """Open the windows of a split as `relm.examples.builders.open_examples` does; nothing is drawn."""
    return SpanExamples(open_tables(manifest, split, objective, check_content))


def generate_spans(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    """Return a batch of random windows, one for each key, whose answer is anywhere in their second half."""
    length, special = objective.sequence_length, vocabulary.special
    tokens = drawn_tokens(keys, length, vocabulary.size, last=special.sep, first=special.cls)
    half = length // 2
    ends = [half + below(drawn(keys, length + number), length - half) for number in range(2)]
    inputs = model_inputs(tokens, np.full(len(keys), length), np.full(len(keys), half))
    return {**inputs, "answer_positions": np.sort(np.stack(ends, 1), axis=1)}


def span_lengths(objective: Objective) -> tuple[int, int, int]:
    """Return the lengths of an example, which has no logits over the vocabulary."""
    return objective.sequence_length, 0, 0
