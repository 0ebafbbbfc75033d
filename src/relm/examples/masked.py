"""Masked-language-model examples: pack documents into a table, and read it with masks.

With dynamic masks the table holds unmasked sequences, and the mask of a row is drawn when it is read, from (seed, epoch, index
of the row), as in RoBERTa (Liu et al. 2019, section 4.1). With static masks it is drawn once, from (seed of the objective,
index of the row in its shard), and stored.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.as_published.instances import table_columns as static_columns
from relm.examples.contract import IGNORED, Batch, Integers, Vocabulary
from relm.examples.described_tables import TableSource, open_table
from relm.examples.documents import checked_documents
from relm.examples.draws import Draws, below, drawn, drawn_tokens
from relm.examples.masking import MaskedRows, capacity, mask_rows, prediction_capacity
from relm.examples.order import row_keys
from relm.examples.packing import FOLLOWS, RANDOM, Packing, Sequences, Text, packed, require_room
from relm.examples.sequences import Specials, rows_of
from relm.examples.sharded_tables import ExampleTables, open_tables
from relm.examples.table import Column
from relm.examples.tokenization.tokenizer_files import SPECIAL_TOKENS, LoadedTokenizer, SpecialIds, load_tokenizer
from relm.examples.tokenized import TokenizedDocuments, tokenize_documents
from relm.limits import usable_cores
from relm.recipes.objectives import Objective

Columns = dict[str, npt.NDArray[Any]]

# Positions in rows that are built together, so that intermediate results stay in the cache.
BLOCK = 2**17


class SequenceBatch(NamedTuple):
    """Sequences that become rows together."""

    packing: Packing
    sequences: Sequences
    first_row: int
    """Index of its first row in the table."""
    read: int
    """Tokens of the text up to the block's end, over all repetitions."""


def pregenerate_masked(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Pack a file of documents into one table of sequences, `output`, and its sidecar.

    Columns: `input_ids` (L), `length`, `second_start` (the length without a second segment), `next_sentence_label` (0 follows,
    1 random, -1 no pair); with dynamic masks `word_starts` (L); with static masks, which replace the masked tokens,
    `masked_positions`, `masked_labels` (P) and `masked_count`. Padding is the pad token, else 0. Arguments as in
    `relm.examples.builders.pregenerate`.
    """
    started = perf_counter()
    require_room(_packing(objective, ""))
    require_special(load_tokenizer(tokenizer))
    cores = usable_cores() if workers is None else workers
    truncated, labels = 0, np.zeros(2, dtype=np.int64)
    with tokenize_documents(documents, tokenizer, objective.masked.sentences, language, workers, folder=output.parent) as found:
        if not len(found.tokens) and not checked_documents(documents)[1]:
            raise RelmError(f"{documents}: holds no text; extract the documents again")
        source = TableSource(found.source_sha256, len(found.document_starts) - 1, found.words, found.bytes)
        make = functools.partial(make_columns, found, objective)
        total, read = len(found.tokens) * objective.masked.duplication_factor, 0
        columns_of_table = table_columns(objective, found.loaded.vocabulary_size)
        with (
            open_table(output, objective, found.loaded, source, columns_of_table, total, "tokens") as table,
            contextlib.closing(_in_threads(make, blocks_of(found, objective), cores)) as made,
        ):
            for block, columns in made:
                table.append(columns, columns["length"], block.read - read)
                read, truncated = block.read, truncated + block.sequences.truncated
                labels += [np.count_nonzero(columns["next_sentence_label"] == label) for label in (FOLLOWS, RANDOM)]
            utilisation = table.tokens / max(1, table.examples * objective.sequence_length)
            follow, random = labels.tolist()
            pairs = {"pairs_that_follow": follow, "random_pairs": random, "truncated_tokens": truncated}
            table.counts = {"utilisation": utilisation, **pairs}
    shown = f"; {follow:,} pairs follow each other, {random:,} are random, {truncated:,} tokens were cut off" if random else ""
    return (
        f"packed {source.documents:,} documents with {source.words:,} words into {table.examples:,} sequences of "
        f"{table.tokens:,} tokens, {utilisation:.1%} utilisation{shown}; "
        f"{table.examples / (perf_counter() - started):,.0f} sequences/s"
    )


def require_special(loaded: LoadedTokenizer) -> None:
    """Raise RelmError unless a tokenizer has the special tokens of masked sequences."""
    if lacking := [name for name in ("cls", "sep", "mask") if getattr(loaded.special, name) is None]:
        tokens = ", ".join(" or ".join(SPECIAL_TOKENS[name]) for name in lacking)
        raise RelmError(
            f"{loaded.path}: lacks the special tokens {tokens}, which masked sequences need; "
            "use another tokenizer, for example one trained as wordpiece"
        )


def table_columns(objective: Objective, vocabulary_size: int) -> list[Column]:
    """Return the columns of a table of masked examples; `pregenerate_masked` describes them."""
    length = objective.sequence_length
    columns = static_columns(length, capacity(objective.masked, length), vocabulary_size)
    return columns if objective.masked.masks == "static" else [*columns[:4], Column("word_starts", "bool", length)]


def blocks_of(found: TokenizedDocuments, objective: Objective) -> Iterator[SequenceBatch]:
    """Yield all sequences, repetition by repetition, in blocks."""
    text = Text(found.sentence_starts, found.document_starts)
    size = max(1, BLOCK // objective.sequence_length)
    row = 0
    for repetition in range(objective.masked.duplication_factor):
        packing = _packing(objective, found.source_sha256, repetition)
        for sequences in packed(text, packing):
            for start in range(0, len(sequences.label), size):
                part = sequences.between(start, start + size)
                part = part._replace(truncated=0 if start else sequences.truncated)
                yield SequenceBatch(packing, part, row, repetition * len(found.tokens) + int(part.first_stop[-1]))
                row += len(part.label)


def make_columns(found: TokenizedDocuments, objective: Objective, block: SequenceBatch) -> Columns:
    """Return the rows of a block, as columns of the table."""
    options, special = objective.masked, found.loaded.special
    assert special.cls is not None and special.sep is not None, "see `require_special`"  # noqa: PT018
    specials = Specials(special.cls, special.sep, special.pad or 0)
    rows = rows_of(found.tokens, found.word_starts, block.sequences, block.packing, specials)
    columns: Columns = rows._asdict()
    if options.masks == "dynamic":
        return columns
    del columns["word_starts"]
    numbers = np.arange(block.first_row, block.first_row + len(rows.length))
    keys = row_keys(f"static masks of {found.source_sha256}", options.seed, np.zeros(1, np.int64), numbers)
    places = capacity(options, objective.sequence_length)
    masked = mask_rows(
        rows.input_ids, rows.length, keys, options, special, found.loaded.vocabulary_size, places, rows.word_starts
    )
    return {
        **columns,
        "input_ids": masked.input_ids,
        "masked_positions": masked.positions,
        "masked_labels": masked.labels,
        "masked_count": masked.counts,
    }


Made = Generator[tuple[SequenceBatch, Columns], None, None]


def _in_threads(make: Callable[[SequenceBatch], Columns], blocks: Iterator[SequenceBatch], threads: int) -> Made:
    """Yield each block with its rows, in order; threads make several at once."""
    waiting: collections.deque[tuple[SequenceBatch, Future[Columns]]] = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        for block in blocks:
            waiting.append((block, pool.submit(make, block)))
            if len(waiting) > 2 * threads:  # without a bound, finished blocks would fill memory
                done, columns = waiting.popleft()
                yield done, columns.result()
        for done, columns in waiting:
            yield done, columns.result()


def _packing(objective: Objective, source: str, repetition: int = 0) -> Packing:
    return Packing(objective.masked, objective.sequence_length, source, repetition)


class MaskedExamples:
    """The masked examples of one split, by index; see `contract.Examples` for the names in a batch."""

    def __init__(
        self, tables: ExampleTables, objective: Objective, seed: int, special: SpecialIds, vocabulary_size: int
    ) -> None:
        """Set up the reading of one split's tables; the seed and the options decide dynamic masks."""
        self.tables, self.options, self.seed = tables, objective.masked, seed
        self.special, self.vocabulary_size = special, vocabulary_size
        columns = tables.columns
        self.is_static = "masked_positions" in columns
        self.places = capacity(self.options, objective.sequence_length) if not self.is_static else 0
        """Capacity for masked tokens, with dynamic masks."""
        if (found := columns["input_ids"].width) != objective.sequence_length:
            raise RelmError(
                f"sequence_length: {objective.sequence_length}, but the examples were packed to {found}; pregenerate them again"
            )
        if not self.is_static and self.options.whole_words and "word_starts" not in columns:
            raise RelmError("masked.whole_words: the examples lack the starts of words; pregenerate them again")
        split = tables.facts_of_split
        self.is_full = split.examples is not None and split.tokens == split.examples * objective.sequence_length
        """True if no sequence has padding."""
        self.has_pairs = int(tables.rows("next_sentence_label", np.zeros(1, np.int64))[0]) >= 0

    def __len__(self) -> int:
        return len(self.tables)

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return the examples with these indices and the masks of these epochs; static masks are the same in every epoch."""
        lengths, second_start = (self.tables.rows(name, indices) for name in ("length", "second_start"))
        masked = self._stored(indices) if self.is_static else self._drawn(indices, epochs, lengths)
        positions = np.arange(masked.input_ids.shape[1])
        attention_mask = positions < lengths[:, None]
        unused = np.arange(masked.labels.shape[1]) >= masked.counts[:, None]
        batch: Batch = {
            "input_ids": masked.input_ids.astype(np.int64),
            "attention_mask": attention_mask,
            "token_type_ids": (attention_mask & (positions >= second_start[:, None])).astype(np.int64),
            "masked_positions": masked.positions.astype(np.int64),
            "masked_labels": np.where(unused, np.int64(IGNORED), masked.labels),
        }
        if self.has_pairs:
            batch["next_sentence_labels"] = self.tables.rows("next_sentence_label", indices).astype(np.int64)
        return batch

    def _stored(self, indices: Integers) -> MaskedRows:
        names = ("input_ids", "masked_positions", "masked_labels", "masked_count")
        return MaskedRows(*(self.tables.rows(name, indices) for name in names))

    def _drawn(self, indices: Integers, epochs: Integers, lengths: npt.NDArray[np.integer]) -> MaskedRows:
        return mask_rows(
            self.tables.rows("input_ids", indices),
            lengths,
            row_keys("masks", self.seed, epochs, indices),
            self.options,
            self.special,
            self.vocabulary_size,
            self.places,
            self.tables.rows("word_starts", indices) if self.options.whole_words else None,
        )


def open_masked(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> MaskedExamples:
    """Open the examples of a split; arguments and errors are those of `relm.examples.builders.open_examples`."""
    tables = open_tables(manifest, split, objective, check_content)
    tokenizer = tables.manifest.tokenizer
    return MaskedExamples(tables, objective, seed, SpecialIds(**tokenizer.special), tokenizer.vocabulary_size)


def generate_masked(objective: Objective, vocabulary: Vocabulary, keys: Draws) -> Batch:
    """Return a batch of random sequences, one for each key, masked as real ones are."""
    options, length, special = objective.masked, objective.sequence_length, vocabulary.special
    if special.mask is None:
        raise RelmError("masked: the tokenizer lacks a mask token; use another tokenizer")
    tokens = drawn_tokens(keys, length, vocabulary.size, last=special.sep, first=special.cls)
    lengths, capacity_of_rows = np.full(len(keys), length), prediction_capacity(objective)
    rows = mask_rows(tokens, lengths, drawn(keys, length), options, special, vocabulary.size, capacity_of_rows)
    unused = np.arange(rows.labels.shape[1]) >= rows.counts[:, None]
    second = np.arange(length) >= length // 2 if options.packing == "sentence_pairs" else np.zeros(length, np.bool_)
    batch: Batch = {
        "input_ids": rows.input_ids.astype(np.int64),
        "attention_mask": np.ones(tokens.shape, dtype=np.bool_),
        "token_type_ids": np.broadcast_to(second, tokens.shape).astype(np.int64),
        "masked_positions": rows.positions.astype(np.int64),
        "masked_labels": np.where(unused, np.int64(IGNORED), rows.labels),
    }
    if options.packing == "sentence_pairs":
        batch["next_sentence_labels"] = below(drawn(keys, length + 1), 2)
    return batch
