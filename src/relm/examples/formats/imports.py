"""Import examples that other programs wrote as one shard of relm's own with its sidecar."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.artifact import sha256_of, write_hashed_sidecar, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.instances import batched, table_columns
from relm.examples.described_tables import first_facts, last_facts
from relm.examples.documents import counts_of
from relm.examples.formats.bert_records import LABEL, Columns, parse_plain_records, parse_remasked_records
from relm.examples.formats.json_lines import build_columns, map_tokens, read_lines, read_shape
from relm.examples.formats.megatron import open_indexed
from relm.examples.formats.tfrecord import Features, decode_example, read_records
from relm.examples.manifest import ExampleCounts
from relm.examples.storage import index_of, shard_writer
from relm.examples.table import table_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.progress import ProgressBar
from relm.recipes.objectives import Masked, Objective

Integers = npt.NDArray[np.int64]
Documents = tuple[Integers, Integers, Callable[[int], str]]
"""The tokens of some documents in sequence, the size of each, and a function from n to the n-th's location, for messages."""

STREAM = Objective(objective="causal", sequence_length=Objective.LONGEST)


def import_megatron(files: Sequence[Path], loaded: LoadedTokenizer, output: Path) -> str:
    """Import Megatron-LM's indexed files in order; `NAME.bin` and `NAME.idx` are one."""
    names = dict.fromkeys(path.with_suffix("") if path.suffix in (".bin", ".idx") else path for path in files)
    opened = [open_indexed(Path(f"{name}.bin")) for name in names]
    documents = (
        (tokens, sizes, functools.partial(name_document, file.path, first))
        for file in opened
        for first, tokens, sizes in file.blocks()
    )
    sources = chain.from_iterable((file.path, index_of(file.path)) for file in opened)
    return import_stream(documents, list(sources), "megatron", loaded, output)


def import_tfrecord(files: Sequence[Path], loaded: LoadedTokenizer, output: Path) -> str:
    """Import records of Google's or Graphcore's BERT, plain or remasked, recognised by the first record."""
    location, first = next(_read_features(files), (str(files[0]), None))
    if first is None:
        raise RelmError(f"{location}: holds no records")
    if not {"input_ids", "masked_lm_positions", "masked_lm_ids"} <= set(first):
        raise RelmError(
            f"{location}: its features are {', '.join(sorted(first)) or 'none'}; expected BERT's masked_lm_positions"
        )
    read = parse_remasked_records if "input_position" in first else parse_plain_records
    blocks = (
        (read([features for _, features in block], locations), locations)
        for block in batched(_read_features(files))
        for locations in [[location for location, _ in block]]
    )
    objective = _make_objective(len(first["input_ids"]), len(first["masked_lm_ids"]), pairs=len(first.get(LABEL, ())) > 0)
    return _import_table(blocks, objective, files, "tfrecord", loaded, output)


def import_tpu_pretrain(files: Sequence[Path], loaded: LoadedTokenizer, output: Path) -> str:
    """Import JSON lines of tpu_pretrain, file by file."""
    shape = read_shape(files)
    if not shape.examples:
        raise RelmError(f"{files[0]}: holds no examples")
    ids, padding = map_tokens(loaded), loaded.special.pad or 0
    lines = chain.from_iterable(read_lines(path) for path in files)
    blocks = ((build_columns(block, shape, ids, padding), [location for location, _ in block]) for block in batched(lines))
    settings = _make_objective(shape.longest, shape.predictions, shape.pairs)
    return _import_table(blocks, settings, files, "tpu_pretrain", loaded, output)


def import_stream(
    documents: Iterator[Documents], sources: Sequence[Path], format: str, loaded: LoadedTokenizer, output: Path
) -> str:
    """Write documents of token ids as one stream; return a sentence with their counts."""
    _require_suffix(output, ".bin", "a stream of tokens")
    counts, end, without_end = ExampleCounts(), loaded.special.end_of_text, 0
    with (
        shard_writer(output, loaded.vocabulary_size) as writer,
        ProgressBar(unit=" tokens", unit_scale=True, disable=None) as bar,
    ):
        for tokens, sizes, location in documents:
            wrong = np.flatnonzero((tokens < 0) | (tokens >= loaded.vocabulary_size))
            if len(wrong):
                document = int(np.searchsorted(np.cumsum(sizes), wrong[0], side="right"))
                _require_ids(tokens[None, wrong[:1]], loaded, [location(document)])
            writer.append(tokens, sizes)
            without_end += len(sizes) - int((tokens[np.cumsum(sizes)[sizes > 0] - 1] == end).sum())
            _count(counts, [piece.tolist() for piece in np.split(tokens, np.cumsum(sizes)[:-1])], loaded)
            bar.update(len(tokens))
    facts = {**_collect_facts(loaded, STREAM, sources, format), **asdict(counts)}
    write_hashed_sidecar(output, writer.sha256, **facts, idx_sha256=writer.index_sha256)
    summary = f"read {counts.tokens:,} tokens of {counts.documents:,} documents: {output}"
    return summary + (f"; {without_end:,} of them do not end with the end-of-text token" if without_end else "")


def _import_table(
    blocks: Iterator[tuple[Columns, list[str]]],
    objective: Objective,
    sources: Sequence[Path],
    format: str,
    loaded: LoadedTokenizer,
    output: Path,
) -> str:
    _require_suffix(output, ".arrow", "masked examples")
    length, predictions = objective.sequence_length, objective.masked.max_predictions or 1
    facts = _collect_facts(loaded, objective, sources, format)
    counts = ExampleCounts()
    with (
        table_writer(output, table_columns(length, predictions, loaded.vocabulary_size), facts) as writer,
        ProgressBar(unit=" examples", unit_scale=True, disable=None) as bar,
    ):
        for columns, locations in blocks:
            for name, width in (("input_ids", length), ("masked_labels", predictions)):
                if (found := columns[name].shape[1]) != width:
                    raise RelmError(f"{locations[0]}: {found} {name}, but the first example has {width}; import them apart")
                _require_ids(columns[name], loaded, locations)
            _require_positions(columns, locations)
            writer.append(columns)
            _count(counts, _restore_tokens(columns), loaded)
            bar.update(len(locations))
    write_sidecar(output, **facts, **asdict(counts), examples=writer.rows)
    return f"read {writer.rows:,} examples of {length} positions, {counts.tokens:,} tokens: {output}"


def _collect_facts(loaded: LoadedTokenizer, objective: Objective, sources: Sequence[Path], format: str) -> dict[str, Any]:
    digests = [sha256_of(path) for path in sources]
    source = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return {**first_facts(objective, loaded), **last_facts(objective, loaded, source), "imported_from": format}


def _make_objective(length: int, predictions: int, pairs: bool) -> Objective:
    packing: Any = "sentence_pairs" if pairs else "full_sentences"
    masked = Masked(packing=packing, masks="static", max_predictions=max(predictions, 1))
    return Objective(objective="masked", sequence_length=length, masked=masked)


def _read_features(files: Sequence[Path]) -> Iterator[tuple[str, Features]]:
    """Yield location and features of every record."""
    for path in files:
        for number, record in enumerate(read_records(path)):
            location = f"{path}, record {number:,}"
            yield location, decode_example(record, location)


def name_document(path: Path, first: int, number: int) -> str:
    """Return the location of a document, the `number`-th from the `first` on, for messages."""
    return f"{path}, document {first + number:,}"


def _count(counts: ExampleCounts, sequences: Sequence[list[int]], loaded: LoadedTokenizer) -> None:
    """Add some sequences of token ids to the sums; words and bytes are those of the decoded text."""
    texts = loaded.tokenizer.decode_batch(list(sequences), skip_special_tokens=True)
    sizes = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    counts.add(int(sizes.sum()), len(sizes), *counts_of(texts), sizes)


def _restore_tokens(columns: Columns) -> list[list[int]]:
    """Return the tokens of each row as they were before masking, without padding."""
    ids = columns["input_ids"].copy()
    rows, used = np.nonzero(np.arange(columns["masked_positions"].shape[1]) < columns["masked_count"][:, None])
    ids[rows, columns["masked_positions"][rows, used]] = columns["masked_labels"][rows, used]
    return [row[:length].tolist() for row, length in zip(ids, columns["length"].tolist(), strict=True)]


def _require_ids(tokens: Integers, loaded: LoadedTokenizer, locations: Sequence[str]) -> None:
    """Raise RelmError for token ids, (locations, any number), that the tokenizer does not have."""
    wrong = (tokens < 0) | (tokens >= loaded.vocabulary_size)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise RelmError(
            f"{locations[row]}: token id {tokens[row, column]}, but {loaded.path} has 0 to {loaded.vocabulary_size - 1}; "
            "give the tokenizer that it was made with"
        )


def _require_positions(columns: Columns, locations: Sequence[str]) -> None:
    used = np.arange(columns["masked_positions"].shape[1]) < columns["masked_count"][:, None]
    wrong = used & ~((columns["masked_positions"] >= 0) & (columns["masked_positions"] < columns["length"][:, None]))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise RelmError(
            f"{locations[row]}: position {columns['masked_positions'][row, column]} is masked, but there are "
            f"{columns['length'][row]} tokens: damaged, or another format"
        )


def _require_suffix(output: Path, suffix: str, what: str) -> None:
    if output.suffix != suffix:
        raise RelmError(f"{output}: expected a {suffix} file for {what}; rename it")
