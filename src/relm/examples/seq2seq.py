"""Sequence-to-sequence examples: a target text, and the source that a rule derives from it.

The target is the text in standard letters (`relm.examples.diacritics`), the source the target without diacritics. Pairs are
stored at full length, each side with one end of text, and truncated and padded when they are read, so one table serves any
lengths.
"""

import contextlib
import functools
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.causal import with_end_of_text
from relm.examples.columns import Column, Ragged
from relm.examples.contract import IGNORED, Batch, Integers, Vocabulary
from relm.examples.described_tables import first_facts, last_facts
from relm.examples.diacritics import with_standard_letters, without_diacritics
from relm.examples.documents import Lines, checked_documents
from relm.examples.draws import Draws, drawn, drawn_tokens
from relm.examples.manifest import ExampleCounts
from relm.examples.mapped_documents import map_documents
from relm.examples.sharded_tables import ExampleTables, open_tables
from relm.examples.storage import dtype_of
from relm.examples.table import table_writer
from relm.examples.tokenization.encoder import load_encoder
from relm.examples.tokenization.tokenizer_files import SpecialIds, load_tokenizer
from relm.recipes.objectives import Objective, Seq2Seq


class Pairs(NamedTuple):
    """The pairs of some documents, and counts of their text."""

    source: Ragged
    target: Ragged
    documents: int
    words: int
    bytes: int


def pregenerate_seq2seq(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Encode a file of documents as one table of pairs, `output`, and its sidecar.

    Columns: `source` and `target`, ragged, each with one end of text. A text without tokens gives no pair. Arguments are those
    of `relm.examples.builders.pregenerate`; the language decides the standard letters.
    """
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    source, may_be_empty = checked_documents(documents)
    facts = {**first_facts(objective, loaded), **last_facts(objective, loaded, source)}
    encode = functools.partial(
        encode_pairs,
        tokenizer=tokenizer,
        tokenizer_sha256=loaded.sha256,
        options=objective.seq2seq,
        language=language,
        end_of_text_id=loaded.required("end_of_text"),
    )
    task = f"encoding {documents}"
    counts, kind = ExampleCounts(), dtype_of(loaded.vocabulary_size)
    columns = [Column(name, kind, "ragged", below=loaded.vocabulary_size) for name in ("source", "target")]
    with (
        table_writer(output, columns, facts) as table,
        contextlib.closing(map_documents(encode, [documents], workers, task, numbered=False)) as encoded,
    ):
        for _, pairs in encoded:
            table.append({"source": pairs.source, "target": pairs.target})
            tokens = len(pairs.source.values) + len(pairs.target.values)
            longer = np.maximum(pairs.source.sizes, pairs.target.sizes)  # a side longer than a sequence is truncated
            counts.add(tokens, pairs.documents, pairs.words, pairs.bytes, longer)
        if not table.rows and not may_be_empty:
            raise RelmError(f"{documents}: holds no text that gives a pair; extract the documents again")
    write_sidecar(output, **facts, **asdict(counts), examples=table.rows)
    seconds = perf_counter() - started
    return (
        f"encoded {counts.documents:,} documents with {counts.words:,} words as {table.rows:,} pairs of "
        f"{counts.tokens:,} tokens in {seconds:.1f} s; {counts.tokens / seconds:,.0f} tokens/s"
    )


def encode_pairs(
    lines: Lines, *, tokenizer: Path, tokenizer_sha256: str, options: Seq2Seq, language: str, end_of_text_id: int
) -> Pairs:
    """Return the pairs of some lines of a documents file."""
    encoder = load_encoder(tokenizer, tokenizer_sha256)
    texts = lines.texts()
    targets = [target for text in texts for target in target_texts(text, options, language)]
    sources = list(map(without_diacritics, targets))
    tokens, sizes = encoder.encoded([*sources, *targets])
    if (tokens == end_of_text_id).any():
        raise RelmError(
            f"{tokenizer}: encodes ordinary text as the end of text, so a pair would have several; use another tokenizer"
        )
    kept = np.tile((sizes[: len(sources)] > 0) & (sizes[len(sources) :] > 0), 2)
    tokens, sizes = with_end_of_text(tokens[np.repeat(kept, sizes)], sizes[kept], end_of_text_id)
    source_sizes, target_sizes = np.split(sizes.astype(np.int64), 2)
    cut = int(source_sizes.sum())
    return Pairs(
        Ragged(tokens[:cut], source_sizes),
        Ragged(tokens[cut:], target_sizes),
        documents=len(texts),
        words=sum(len(text.split()) for text in texts),
        bytes=sum(len(text.encode()) for text in texts),
    )


def target_texts(text: str, options: Seq2Seq, language: str) -> list[str]:
    """Return the targets of a document: its stripped lines, or its stripped text; blank ones are left out."""
    pieces = text.split("\n") if options.texts == "lines" else [text]
    return [with_standard_letters(piece, language) for piece in map(str.strip, pieces) if piece]


def padded(rows: Ragged, length: int, end_of_text_id: int, padding: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return rows truncated or padded to one length, (rows, length), and False for padding.

    A truncated row keeps its end of text, as its last token.

    >>> padded(Ragged(np.array([5, 1, 6, 7, 8, 1]), np.array([2, 4])), 3, end_of_text_id=1, padding=0)[0]
    array([[5, 1, 0],
           [6, 7, 1]])
    """
    columns = np.arange(length)
    present = columns < rows.sizes[:, None]
    starts = np.cumsum(rows.sizes) - rows.sizes
    tokens = rows.values.take(starts[:, None] + columns, mode="clip").astype(np.int64)
    tokens[~present] = padding
    tokens[rows.sizes > length, -1] = end_of_text_id
    return tokens, present


class Seq2SeqExamples:
    """The pairs of one split, by index."""

    def __init__(self, tables: ExampleTables, objective: Objective, special: SpecialIds) -> None:
        """Set up the reading of tables of pairs, of the objective's lengths.

        Without a padding token the end of text pads; this makes no difference, since padding is masked and not scored.
        """
        if tables.manifest.objective != "seq2seq" or special.end_of_text is None:
            raise RelmError(f"expected pairs of source and target, found tables of {tables.manifest.objective} examples")
        self.tables = tables
        self.source_length = objective.sequence_length
        self.target_length = objective.seq2seq.target_length or objective.sequence_length
        self.end_of_text_id = special.end_of_text
        self.pad_id = special.end_of_text if special.pad is None else special.pad

    def __len__(self) -> int:
        return len(self.tables)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return `input_ids` and `attention_mask`, (examples, source length), and `labels`, (examples, target length).

        Nothing is drawn, so an example is the same in all epochs.
        """
        source, target = (self.tables.rows(name, indices) for name in ("source", "target"))
        inputs, present = padded(source, self.source_length, self.end_of_text_id, self.pad_id)
        labels, _ = padded(target, self.target_length, self.end_of_text_id, IGNORED)
        return {"input_ids": inputs, "attention_mask": present, "labels": labels}


def open_seq2seq(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> Seq2SeqExamples:
    """Open the pairs of a split as `relm.examples.builders.open_examples` does; nothing is drawn."""
    tables = open_tables(manifest, split, objective, check_content)
    return Seq2SeqExamples(tables, objective, SpecialIds(**tables.manifest.tokenizer.special))


def generate_seq2seq(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    """Return a batch of random pairs, one for each key."""
    end, (length, target_length, _) = vocabulary.special.end_of_text, seq2seq_lengths(objective)
    source = drawn_tokens(keys, length, vocabulary.size, last=end)
    target = drawn_tokens(drawn(keys, length), target_length, vocabulary.size, last=end)
    return {"input_ids": source, "attention_mask": np.ones(source.shape, dtype=np.bool_), "labels": target}


def seq2seq_lengths(objective: Objective) -> tuple[int, int, int]:
    """Return the lengths of a pair, which is scored at every position of its target."""
    target = objective.seq2seq.target_length or objective.sequence_length
    return objective.sequence_length, target, target
