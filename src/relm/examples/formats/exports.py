"""Examples of one split, written in other programs' formats."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from relm.artifact import atomic_file, sha256_of, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.graphcore_bert import remasked
from relm.examples.formats.bert_records import plain_records, remasked_records
from relm.examples.formats.json_lines import lines_of, metrics, metrics_path, vocabulary
from relm.examples.formats.megatron import open_indexed
from relm.examples.formats.tfrecord import encoded, record_writer
from relm.examples.manifest import Manifest, read_manifest, require_shard
from relm.examples.storage import TokenStream, flush_all, index_of, shard_writer
from relm.examples.table import ExampleTables
from relm.examples.tokenizers import LoadedTokenizer, load_tokenizer
from relm.recipes.objectives import TABLE, TOKEN_STREAM

Columns = dict[str, npt.NDArray[Any]]

# Rows that are read, converted and written at once.
ROWS_AT_ONCE = 1024
NAMES = (
    "input_ids", "length", "second_start", "next_sentence_label", "masked_positions", "masked_labels", "masked_count",
)  # fmt: skip


@dataclass(frozen=True)
class ExportSource:
    """The examples to export, and where they lie."""

    path: Path
    """Of the manifest."""
    manifest: Manifest
    split: str
    tokenizer: LoadedTokenizer

    @property
    def facts(self) -> dict[str, Any]:
        """For the sidecar of what is written."""
        return {"exported_from": sha256_of(self.path), "split": self.split, "tokenizer_sha256": self.tokenizer.sha256}


def opened_split(path: Path, split: str, tokenizer: Path) -> ExportSource:
    """Return a manifest and the tokenizer that its examples were made with.

    Raises:
        RelmError: one of them is absent, the tokenizer is another one, or there is no such split.
    """
    manifest, loaded = read_manifest(path), load_tokenizer(tokenizer)
    manifest.split(split, path)
    if loaded.sha256 != manifest.tokenizer.sha256:
        raise RelmError(
            f"{tokenizer}: sha256 is {loaded.sha256}, but {path} was made with a tokenizer of sha256 "
            f"{manifest.tokenizer.sha256}; give the tokenizer that belongs to it"
        )
    return ExportSource(path, manifest, split, loaded)


def export_megatron(source: ExportSource, output: Path) -> str:
    """Return all shards as one `.bin` and its `.idx`."""
    _require_layout(source, TOKEN_STREAM, "megatron", "a table of sequences; Megatron-LM packs and masks such by itself")
    shards = [shard for shard in source.manifest.split(source.split, source.path) if shard.tokens]
    with shard_writer(output, source.manifest.tokenizer.vocabulary_size) as writer:
        for shard in tqdm(shards, unit="shards", disable=None):
            for tokens, sizes in open_indexed(require_shard(source.path, shard, check_content=True)).blocks():
                writer.append(tokens, sizes)
    write_sidecar(output, **source.facts, idx_sha256=sha256_of(index_of(output)))
    return f"wrote {writer.tokens:,} tokens of {writer.documents:,} documents: {output}, {index_of(output).name}"


def export_tfrecord(source: ExportSource, output: Path, sequence_length: int | None = None) -> str:
    """Masked examples as plain records, or windows of a stream, with an index."""
    if source.manifest.layout == TOKEN_STREAM:
        if sequence_length is None:
            raise RelmError(f"{source.path}: holds a stream of tokens, which is cut into windows; give --sequence-length")
        return _write_records(source, output, ({"input_ids": window} for window in _windows(source, sequence_length)))
    rows = _static_rows(source, "tfrecord")
    return _write_records(source, output, (record for columns in rows for record in plain_records(columns)))


def export_remasked_tfrecord(source: ExportSource, output: Path) -> str:
    """Masked examples with the hidden tokens first, as the original's --remask writes them."""
    dropped = [0]
    layouts = (_remasked(source, columns, dropped) for columns in _static_rows(source, "tfrecord_remasked"))
    said = _write_records(source, output, (record for fields in layouts for record in remasked_records(fields)))
    return said + (f"; {dropped[0]:,} tokens with id 0 were left out, which is padding in this layout" if dropped[0] else "")


def export_tpu_pretrain(source: ExportSource, output: Path) -> str:
    """Masked examples as JSON lines, and their counts beside them."""
    tokens, written = vocabulary(source.tokenizer), 0
    rows = _static_rows(source, "tpu_pretrain")
    with atomic_file(output) as file, atomic_file(metrics_path(output), "w") as counts:
        for columns in rows:
            lines = list(lines_of(columns, tokens))
            file.write("".join(lines).encode())
            written += len(lines)
        counts.write(metrics(written, columns["input_ids"].shape[1]))
        flush_all(file, counts)
        sidecar_of(output).unlink(missing_ok=True)
    write_sidecar(output, **source.facts, examples=written)
    return f"wrote {written:,} examples: {output}, {metrics_path(output).name}"


def _require_layout(source: ExportSource, layout: str, format: str, why: str) -> None:
    if source.manifest.layout != layout:
        raise RelmError(f"{source.path}: format {format} cannot hold {why}; export it in another format")


def _write_records(source: ExportSource, output: Path, records: Iterable[Mapping[str, Any]]) -> str:
    waiting: list[bytes] = []
    with record_writer(output) as writer, tqdm(unit="records", unit_scale=True, desc=output.name, disable=None) as bar:
        for record in records:
            waiting.append(encoded(record))
            if len(waiting) == ROWS_AT_ONCE:
                writer.append(waiting)
                bar.update(len(waiting))
                waiting = []
        writer.append(waiting)
    write_sidecar(output, **source.facts, examples=writer.records)
    return f"wrote {writer.records:,} records: {output}, {output.with_suffix('.index').name}"


def _windows(source: ExportSource, length: int) -> Iterator[npt.NDArray[np.int64]]:
    """Windows that touch but do not overlap; what remains at the end is one more if it is longer than half a window."""
    if length < 2:
        raise RelmError(f"--sequence-length: expected 2 or more, found {length}")
    stream = TokenStream(source.path, source.manifest.split(source.split, source.path))
    for start in range(0, len(stream), ROWS_AT_ONCE * length):
        tokens = stream.tokens(start, start + ROWS_AT_ONCE * length)
        for first in range(0, len(tokens), length):
            window = tokens[first : first + length]
            if len(window) == length or len(window) > length // 2:
                yield window


def _static_rows(source: ExportSource, format: str) -> Iterator[Columns]:
    """Return the rows of all tables, some at a time, which must have static masks."""
    _require_layout(source, TABLE, format, "a stream of tokens without masks")
    tables = ExampleTables(source.path, source.split)
    if missing := [name for name in NAMES if name not in tables.columns]:
        later = "their masks are drawn as examples are read; make examples with masked.masks: static"
        why = later if source.manifest.objective == "masked" else f"their objective is {source.manifest.objective}"
        raise RelmError(f"{source.path}: format {format} needs the column {missing[0]}, which these examples lack: {why}")
    return _blocks(tables, NAMES)


def _blocks(tables: ExampleTables, names: tuple[str, ...]) -> Iterator[Columns]:
    for start in range(0, len(tables), ROWS_AT_ONCE):
        indices = np.arange(start, min(start + ROWS_AT_ONCE, len(tables)))
        yield {name: tables.rows(name, indices).astype(np.int64) for name in names}


def _remasked(source: ExportSource, columns: Columns, dropped: list[int]) -> Columns:
    """Return rows in the remasked layout; `dropped` counts tokens that it cannot hold."""
    if source.tokenizer.special.pad != 0:
        raise RelmError(f"{source.path}: the remasked layout takes id 0 for padding, but in this tokenizer it is another token")
    width, hidden = columns["input_ids"].shape[1], columns["masked_positions"].shape[1]
    shown = columns["length"] - columns["masked_count"]
    if (wrong := np.flatnonzero(shown > width - hidden)).size:
        raise RelmError(
            f"{source.path}: of an example {shown[wrong[0]]} tokens are not hidden, but the remasked layout has "
            f"{width - hidden} places for these; export it as tfrecord, or make the examples with as_published.builder: "
            "graphcore_bert, which hides enough"
        )
    present = np.arange(width) < columns["length"][:, None]
    dropped[0] += int((present & (columns["input_ids"] == 0)).sum())
    return remasked(columns, hidden)
