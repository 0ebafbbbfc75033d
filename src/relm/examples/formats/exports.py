"""Write the masked examples of one split as the originals' data scripts write theirs.

The records are those of Graphcore's create_pretraining_data.py for TensorFlow 1, plain, as Google's are, and remasked: there
masked tokens come first, and each token comes with its position. The JSON lines are those of pregenerate_training_data.py of
allenai/tpu_pretrain. Names, order of values, padding and spaces are the originals'.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import atomic_file, sha256_of, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.graphcore_bert import remask
from relm.examples.formats.tfrecord import encode_example, write_records
from relm.examples.manifest import read_manifest
from relm.examples.sharded_tables import ExampleTables
from relm.examples.storage import flush_all
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.progress import ProgressBar
from relm.recipes.objectives import TABLE

Array = npt.NDArray[Any]
Columns = dict[str, Array]
"""Columns of a table of masked examples with static masks, by name."""

# Rows that are read, converted and written at once.
ROWS_AT_ONCE = 1024
NAMES = (
    "input_ids", "length", "second_start", "next_sentence_label", "masked_positions", "masked_labels", "masked_count",
)  # fmt: skip
LABEL = "next_sentence_labels"
KEYS_OF_LINES = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")


class ExportSource(NamedTuple):
    """The examples to export."""

    path: Path
    """Path of the manifest."""
    tables: ExampleTables
    tokenizer: LoadedTokenizer
    facts: Mapping[str, Any]
    """For the sidecar of the exported file."""

    def blocks(self) -> Iterator[Columns]:
        """Yield the rows in order, as int64."""
        for start in range(0, len(self.tables), ROWS_AT_ONCE):
            indices = np.arange(start, min(start + ROWS_AT_ONCE, len(self.tables)))
            yield {name: self.tables.rows(name, indices).astype(np.int64) for name in NAMES}


def export_examples(manifest: Path, split: str, format: str, output: Path, tokenizer: Path) -> str:
    """Write the masked examples of a split, which have static masks, in another program's format; return a sentence.

    - tfrecord: as Graphcore's and Google's BERT read them.
    - tfrecord_remasked: the same with the masked tokens first, as the original's --remask writes them.
    - tpu_pretrain: JSON lines; ``NAME.json`` gets a ``NAME_metrics.json``.
    """
    suffix, export = EXPORTS[format]
    if output.suffix != suffix:
        raise RelmError(f"{output}: a file of format {format} ends in {suffix}; rename it")
    return export(_open_export(manifest, split, tokenizer), output)


def _open_export(path: Path, split: str, tokenizer: Path) -> ExportSource:
    """Open a split with static masks, and its tokenizer."""
    manifest, loaded = read_manifest(path), load_tokenizer(tokenizer)
    manifest.split(split, path)
    loaded.require_made(path, manifest.tokenizer.sha256)
    tables = ExampleTables(path, split) if manifest.layout == TABLE else None
    if tables is None or any(name not in tables.columns for name in NAMES):
        raise RelmError(
            f"{path}: holds {manifest.objective} examples without stored masks; make masked examples with masked.masks: static"
        )
    facts = {"exported_from": sha256_of(path), "split": split, "tokenizer_sha256": loaded.sha256}
    return ExportSource(path, tables, loaded, facts)


# --- records of BERT -------------------------------------------------------------------------------------------------------


def _export_tfrecord(source: ExportSource, output: Path) -> str:
    return _write_records(source, output, (record for columns in source.blocks() for record in make_plain_records(columns)))


def _export_remasked_tfrecord(source: ExportSource, output: Path) -> str:
    dropped = [0]
    layouts = (_remask(source, columns, dropped) for columns in source.blocks())
    summary = _write_records(source, output, (record for fields in layouts for record in make_remasked_records(fields)))
    return summary + (f"; {dropped[0]:,} tokens with id 0 were left out, which is padding in this layout" if dropped[0] else "")


def _write_records(source: ExportSource, output: Path, records: Iterable[Mapping[str, Any]]) -> str:
    bar = ProgressBar(records, total=len(source.tables), unit="records", unit_scale=True, desc=output.name, disable=None)
    count = write_records(output, map(encode_example, bar))
    write_sidecar(output, **source.facts, examples=count)
    return f"wrote {count:,} records: {output}"


def make_plain_records(columns: Columns) -> Iterator[dict[str, Array]]:
    """Yield the features of each row; a record has no next-sentence label if its row is not a pair."""
    positions = np.arange(columns["input_ids"].shape[1])
    within = positions < columns["length"][:, None]
    used = np.arange(columns["masked_positions"].shape[1]) < columns["masked_count"][:, None]
    features = {
        "input_ids": columns["input_ids"],
        "input_mask": within,
        "segment_ids": within & (positions >= columns["second_start"][:, None]),
        "masked_lm_positions": np.where(used, columns["masked_positions"], 0),
        "masked_lm_ids": np.where(used, columns["masked_labels"], 0),
        "masked_lm_weights": used.astype(np.float32),
    }
    for row, label in enumerate(columns["next_sentence_label"].tolist()):
        yield {**{name: values[row] for name, values in features.items()}, **_make_label(label)}


def make_remasked_records(fields: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the features of each row of `relm.examples.as_published.graphcore_bert.remask`."""
    counts = fields["masked_lm_weights"].sum(axis=1).astype(np.int64)
    for row, count in enumerate(counts.tolist()):
        features = {name: np.atleast_1d(values[row]) for name, values in fields.items() if name != LABEL}
        features["masked_lm_positions"] = features["masked_lm_positions"][:count]
        yield {**features, **_make_label(int(fields[LABEL][row]))}


def _make_label(label: int) -> dict[str, Array]:
    return {LABEL: np.array([label])} if label >= 0 else {}


def _remask(source: ExportSource, columns: Columns, dropped: list[int]) -> Columns:
    """Return rows in the remasked layout; `dropped` counts tokens that it cannot hold."""
    if source.tokenizer.special.pad != 0:
        raise RelmError(f"{source.path}: in the remasked layout id 0 is padding, but in this tokenizer it is another token")
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


# --- JSON lines of tpu_pretrain --------------------------------------------------------------------------------------------


def _export_tpu_pretrain(source: ExportSource, output: Path) -> str:
    tokens = _list_tokens(source.tokenizer)
    metrics = output.with_name(f"{output.stem}_metrics.json")
    with atomic_file(output) as file, atomic_file(metrics, "w") as counts:
        for columns in source.blocks():
            file.write("".join(format_lines(columns, tokens)).encode())
        counts.write(json.dumps({"num_training_examples": len(source.tables), "max_seq_len": columns["input_ids"].shape[1]}))
        flush_all(file, counts)
        sidecar_of(output).unlink(missing_ok=True)
    write_sidecar(output, **source.facts, examples=len(source.tables))
    return f"wrote {len(source.tables):,} examples: {output}, {metrics.name}"


def format_lines(columns: Mapping[str, Array], tokens: Sequence[str]) -> Iterator[str]:
    """Yield the line of each row, its newline included; `tokens` are by id."""
    lists = {name: columns[name].tolist() for name in columns}
    for row, length in enumerate(lists["length"]):
        second, count = lists["second_start"][row], lists["masked_count"][row]
        values = (
            [tokens[token] for token in lists["input_ids"][row][:length]],
            [0] * second + [1] * (length - second),
            lists["next_sentence_label"][row] == 1,
            lists["masked_positions"][row][:count],
            [tokens[token] for token in lists["masked_labels"][row][:count]],
        )
        yield json.dumps(dict(zip(KEYS_OF_LINES, values, strict=True))) + "\n"


def _list_tokens(loaded: LoadedTokenizer) -> list[str]:
    """Return the tokens by id; ids without a token get an empty one."""
    tokens = [""] * loaded.vocabulary_size
    for token, number in loaded.tokenizer.get_vocab(with_added_tokens=True).items():
        tokens[number] = token
    return tokens


EXPORTS: Mapping[str, tuple[str, Callable[[ExportSource, Path], str]]] = {
    "tfrecord": (".tfrecord", _export_tfrecord),
    "tfrecord_remasked": (".tfrecord", _export_remasked_tfrecord),
    "tpu_pretrain": (".json", _export_tpu_pretrain),
}
