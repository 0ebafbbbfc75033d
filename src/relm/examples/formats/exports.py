"""Write the examples of one split in other programs' formats."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.artifact import atomic_file, sha256_of, sidecar_of, write_hashed_sidecar, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.graphcore_bert import remask
from relm.examples.formats.bert_records import make_plain_records, make_remasked_records
from relm.examples.formats.json_lines import format_lines, format_metrics, list_tokens, metrics_path
from relm.examples.formats.megatron import open_indexed
from relm.examples.formats.tfrecord import encode_example, record_writer
from relm.examples.manifest import Manifest, read_manifest, require_shard
from relm.examples.sharded_tables import ExampleTables
from relm.examples.storage import TokenStream, flush_all, index_of, shard_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.progress import ProgressBar
from relm.recipes.objectives import TABLE, TOKEN_STREAM

Columns = dict[str, npt.NDArray[Any]]

# Rows that are read, converted and written at once.
ROWS_AT_ONCE = 1024
NAMES = (
    "input_ids", "length", "second_start", "next_sentence_label", "masked_positions", "masked_labels", "masked_count",
)  # fmt: skip


@dataclass(frozen=True)
class ExportSource:
    """The examples to export, with their manifest and tokenizer."""

    path: Path
    """The path of the manifest."""
    manifest: Manifest
    split: str
    tokenizer: LoadedTokenizer

    @property
    def facts(self) -> dict[str, Any]:
        """The facts for the sidecar of the exported file."""
        return {"exported_from": sha256_of(self.path), "split": self.split, "tokenizer_sha256": self.tokenizer.sha256}


def open_export(path: Path, split: str, tokenizer: Path) -> ExportSource:
    """Return a split's manifest and the tokenizer that its examples were made with."""
    manifest, loaded = read_manifest(path), load_tokenizer(tokenizer)
    manifest.split(split, path)
    if loaded.sha256 != manifest.tokenizer.sha256:
        raise RelmError(
            f"{tokenizer}: sha256 is {loaded.sha256}, but {path} was made with a tokenizer of sha256 "
            f"{manifest.tokenizer.sha256}; give the tokenizer that belongs to it"
        )
    return ExportSource(path, manifest, split, loaded)


def export_megatron(source: ExportSource, output: Path) -> str:
    """Write all shards as one `.bin` and its `.idx`, and return a sentence about them."""
    _require_layout(source, TOKEN_STREAM, "megatron", "a table of sequences; Megatron-LM packs and masks such by itself")
    shards = [shard for shard in source.manifest.split(source.split, source.path) if shard.tokens]
    with shard_writer(output, source.manifest.tokenizer.vocabulary_size) as writer:
        for shard in ProgressBar(shards, unit="shards", disable=None):
            for tokens, sizes in open_indexed(require_shard(source.path, shard, check_content=True)).blocks():
                writer.append(tokens, sizes)
    write_hashed_sidecar(output, writer.sha256, **source.facts, idx_sha256=writer.index_sha256)
    return f"wrote {writer.tokens:,} tokens of {writer.documents:,} documents: {output}, {index_of(output).name}"


def export_tfrecord(source: ExportSource, output: Path, sequence_length: int | None = None) -> str:
    """Write masked examples as plain records, or windows of a stream, with an index; return a sentence about them."""
    if source.manifest.layout == TOKEN_STREAM:
        if sequence_length is None:
            raise RelmError(f"{source.path}: holds a stream of tokens, which is cut into windows; give --sequence-length")
        return _write_records(source, output, ({"input_ids": window} for window in _cut_windows(source, sequence_length)))
    rows = _read_static_rows(source, "tfrecord")
    return _write_records(source, output, (record for columns in rows for record in make_plain_records(columns)))


def export_remasked_tfrecord(source: ExportSource, output: Path) -> str:
    """Write masked examples with the masked tokens first, as the original's --remask does; return a sentence about them."""
    dropped = [0]
    layouts = (_remask(source, columns, dropped) for columns in _read_static_rows(source, "tfrecord_remasked"))
    summary = _write_records(source, output, (record for fields in layouts for record in make_remasked_records(fields)))
    return summary + (f"; {dropped[0]:,} tokens with id 0 were left out, which is padding in this layout" if dropped[0] else "")


def export_tpu_pretrain(source: ExportSource, output: Path) -> str:
    """Write masked examples as JSON lines, and their counts beside them; return a sentence about them."""
    tokens, written = list_tokens(source.tokenizer), 0
    rows = _read_static_rows(source, "tpu_pretrain")
    with atomic_file(output) as file, atomic_file(metrics_path(output), "w") as counts:
        for columns in rows:
            lines = list(format_lines(columns, tokens))
            file.write("".join(lines).encode())
            written += len(lines)
        counts.write(format_metrics(written, columns["input_ids"].shape[1]))
        flush_all(file, counts)
        sidecar_of(output).unlink(missing_ok=True)
    write_sidecar(output, **source.facts, examples=written)
    return f"wrote {written:,} examples: {output}, {metrics_path(output).name}"


def _require_layout(source: ExportSource, layout: str, format: str, why: str) -> None:
    if source.manifest.layout != layout:
        raise RelmError(f"{source.path}: format {format} cannot hold {why}; export it in another format")


def _write_records(source: ExportSource, output: Path, records: Iterable[Mapping[str, Any]]) -> str:
    waiting: list[bytes] = []
    with record_writer(output) as writer, ProgressBar(unit="records", unit_scale=True, desc=output.name, disable=None) as bar:
        for record in records:
            waiting.append(encode_example(record))
            if len(waiting) == ROWS_AT_ONCE:
                writer.append(waiting)
                bar.update(len(waiting))
                waiting = []
        writer.append(waiting)
    write_sidecar(output, **source.facts, examples=writer.records)
    return f"wrote {writer.records:,} records: {output}, {output.with_suffix('.index').name}"


def _cut_windows(source: ExportSource, length: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield adjacent windows without overlap; the remainder is one more if it is longer than half a window."""
    if length < 2:
        raise RelmError(f"--sequence-length: expected 2 or more, found {length}")
    stream = TokenStream(source.path, source.manifest.split(source.split, source.path))
    for start in range(0, len(stream), ROWS_AT_ONCE * length):
        tokens = stream.tokens(start, start + ROWS_AT_ONCE * length)
        for first in range(0, len(tokens), length):
            window = tokens[first : first + length]
            if len(window) == length or len(window) > length // 2:
                yield window


def _read_static_rows(source: ExportSource, format: str) -> Iterator[Columns]:
    """Return the rows of all tables, which must have static masks, in blocks."""
    _require_layout(source, TABLE, format, "a stream of tokens without masks")
    tables = ExampleTables(source.path, source.split)
    if missing := [name for name in NAMES if name not in tables.columns]:
        later = "their masks are drawn as examples are read; make examples with masked.masks: static"
        why = later if source.manifest.objective == "masked" else f"their objective is {source.manifest.objective}"
        raise RelmError(f"{source.path}: format {format} needs the column {missing[0]}, which these examples lack: {why}")
    return _read_blocks(tables, NAMES)


def _read_blocks(tables: ExampleTables, names: tuple[str, ...]) -> Iterator[Columns]:
    for start in range(0, len(tables), ROWS_AT_ONCE):
        indices = np.arange(start, min(start + ROWS_AT_ONCE, len(tables)))
        yield {name: tables.rows(name, indices).astype(np.int64) for name in names}


def _remask(source: ExportSource, columns: Columns, dropped: list[int]) -> Columns:
    """Return rows in the remasked layout; `dropped` counts tokens that it cannot hold."""
    if source.tokenizer.special.pad != 0:
        raise RelmError(f"{source.path}: the remasked layout takes id 0 for padding, but in this tokenizer it is another token")
    width, masked = columns["input_ids"].shape[1], columns["masked_positions"].shape[1]
    unmasked = columns["length"] - columns["masked_count"]
    if (wrong := np.flatnonzero(unmasked > width - masked)).size:
        raise RelmError(
            f"{source.path}: an example has {unmasked[wrong[0]]} tokens that are not masked, but the remasked layout has "
            f"{width - masked} positions for them; export it as tfrecord, or make the examples with as_published.builder: "
            "graphcore_bert, which masks enough"
        )
    present = np.arange(width) < columns["length"][:, None]
    dropped[0] += int((present & (columns["input_ids"] == 0)).sum())
    return remask(columns, masked)
