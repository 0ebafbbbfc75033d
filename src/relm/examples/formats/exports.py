"""Write the masked examples of one split in other programs' formats."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import atomic_file, sha256_of, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.graphcore_bert import remask
from relm.examples.formats.bert_records import make_plain_records, make_remasked_records
from relm.examples.formats.json_lines import format_lines, format_metrics, list_tokens, metrics_path
from relm.examples.formats.tfrecord import encode_example, write_records
from relm.examples.manifest import read_manifest
from relm.examples.sharded_tables import ExampleTables
from relm.examples.storage import flush_all
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.progress import ProgressBar
from relm.recipes.objectives import TABLE

Columns = dict[str, npt.NDArray[Any]]

# Rows that are read, converted and written at once.
ROWS_AT_ONCE = 1024
NAMES = (
    "input_ids", "length", "second_start", "next_sentence_label", "masked_positions", "masked_labels", "masked_count",
)  # fmt: skip


class ExportSource(NamedTuple):
    """The examples to export."""

    path: Path
    """The path of the manifest."""
    tables: ExampleTables
    tokenizer: LoadedTokenizer
    facts: Mapping[str, Any]
    """For the sidecar of the exported file."""

    def blocks(self) -> Iterator[Columns]:
        """Yield the rows in order, as int64."""
        for start in range(0, len(self.tables), ROWS_AT_ONCE):
            indices = np.arange(start, min(start + ROWS_AT_ONCE, len(self.tables)))
            yield {name: self.tables.rows(name, indices).astype(np.int64) for name in NAMES}


def open_export(path: Path, split: str, tokenizer: Path) -> ExportSource:
    """Open a split whose masks are static, with the tokenizer that it was made with."""
    manifest, loaded = read_manifest(path), load_tokenizer(tokenizer)
    manifest.split(split, path)
    loaded.require_made(path, manifest.tokenizer.sha256)
    tables = ExampleTables(path, split) if manifest.layout == TABLE else None
    if tables is None or any(name not in tables.columns for name in NAMES):
        raise RelmError(
            f"{path}: holds {manifest.objective} examples without stored masks; export writes masked examples alone. Make them "
            "with masked.masks: static"
        )
    facts = {"exported_from": sha256_of(path), "split": split, "tokenizer_sha256": loaded.sha256}
    return ExportSource(path, tables, loaded, facts)


def export_tfrecord(source: ExportSource, output: Path) -> str:
    """Write plain records; return a sentence about them."""
    return _write_records(source, output, (record for columns in source.blocks() for record in make_plain_records(columns)))


def export_remasked_tfrecord(source: ExportSource, output: Path) -> str:
    """Write records with the masked tokens first, as the original's --remask does; return a sentence about them."""
    dropped = [0]
    layouts = (_remask(source, columns, dropped) for columns in source.blocks())
    summary = _write_records(source, output, (record for fields in layouts for record in make_remasked_records(fields)))
    return summary + (f"; {dropped[0]:,} tokens with id 0 were left out, which is padding in this layout" if dropped[0] else "")


def export_tpu_pretrain(source: ExportSource, output: Path) -> str:
    """Write JSON lines and a file of their counts; return a sentence about them."""
    tokens = list_tokens(source.tokenizer)
    with atomic_file(output) as file, atomic_file(metrics_path(output), "w") as counts:
        for columns in source.blocks():
            file.write("".join(format_lines(columns, tokens)).encode())
        counts.write(format_metrics(len(source.tables), columns["input_ids"].shape[1]))
        flush_all(file, counts)
        sidecar_of(output).unlink(missing_ok=True)
    write_sidecar(output, **source.facts, examples=len(source.tables))
    return f"wrote {len(source.tables):,} examples: {output}, {metrics_path(output).name}"


def _write_records(source: ExportSource, output: Path, records: Iterable[Mapping[str, Any]]) -> str:
    bar = ProgressBar(records, total=len(source.tables), unit="records", unit_scale=True, desc=output.name, disable=None)
    count = write_records(output, map(encode_example, bar))
    write_sidecar(output, **source.facts, examples=count)
    return f"wrote {count:,} records: {output}"


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
