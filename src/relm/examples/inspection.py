"""Format the content of a file of examples for a terminal: a few decoded examples with visible masks, and statistics."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relm.artifact import checked_sidecar, read_sidecar, sha256_of, sidecar_of
from relm.corpus.documents import read_documents
from relm.errors import RelmError
from relm.examples.formats.megatron import IndexedFile, open_indexed
from relm.examples.inspection_text import Contents, SplitStatistics, format_contents
from relm.examples.manifest import AGAIN_SHARD, length_histogram, read_manifest, require_shard, summed
from relm.examples.sharded_tables import ExampleTables
from relm.examples.storage import index_of
from relm.examples.table import Column, ExampleTable, Ragged
from relm.examples.token_text import TokenTexts
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.formatting import escape_controls
from relm.recipes.objectives import TABLE

# Tokens of an example to show; the rest is counted.
SHOWN = 160
SHOWN_CHARACTERS = 600  # of a document
ROWS_AT_ONCE = 2**16


class RowTable(Protocol):
    """One table, or several as one."""

    @property
    def columns(self) -> dict[str, Column]: ...

    def __len__(self) -> int: ...

    def rows(self, name: str, indices: npt.NDArray[np.integer]) -> Any: ...


def inspect(path: Path, tokenizer: Path | None, examples: int) -> str:
    """Describe a manifest, extracted documents, a table (.arrow), or a stream of tokens (.bin, .idx), for a terminal.

    `examples` of the examples are shown, spread over the file, as token ids where there is no tokenizer.
    """
    if not path.exists() and not path.with_suffix(".bin").exists():
        raise RelmError(f"{path}: no such file")
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    return format_contents(_reader(path)(path, loaded, max(examples, 0)))


def _reader(path: Path) -> Callable[[Path, LoadedTokenizer | None, int], Contents]:
    by_suffix = {".json": _manifest, ".jsonl": _documents, ".bin": _stream, ".idx": _stream, ".arrow": _table}
    if path.suffix not in by_suffix:
        raise RelmError(
            f"{path}: expected one of {', '.join(by_suffix)}; found a file that ends in {path.suffix or 'nothing'}; `relm "
            "import` reads files of other programs"
        )
    return by_suffix[path.suffix]


def _documents(path: Path, loaded: LoadedTokenizer | None, examples: int) -> Contents:
    """Describe a file of extracted documents, with the beginning of some."""
    facts = checked_sidecar(path)
    if not {"documents", "words", "skipped"} <= set(facts):
        raise RelmError(f"{path}: not a file that `relm extract` wrote; give one of its outputs, or a manifest")
    wanted = set(_spread(facts["documents"], examples))
    shown = [
        (f"document {number:,}: {escape_controls(document.title)}", [escape_controls(document.text[:SHOWN_CHARACTERS])])
        for number, document in enumerate(read_documents(path))
        if number in wanted
    ]
    statistics = [SplitStatistics("all", {name: facts[name] for name in ("documents", "words", "bytes")})]
    statistics += [SplitStatistics("skipped", facts["skipped"])] if any(facts["skipped"].values()) else []
    if unknown := facts.get("unknown_templates"):
        statistics.append(
            SplitStatistics("unknown", {escape_controls(f"{{{{{name}}}}}"): count for name, count in unknown.items()})
        )
    return Contents(path, "extracted documents", {}, statistics, shown)


def _manifest(path: Path, loaded: LoadedTokenizer | None, examples: int) -> Contents:
    facts = read_manifest(path)
    _require_tokenizer(path, facts.tokenizer.sha256, loaded)
    contents = Contents(path, f"{facts.objective} examples, kept as {_layout(facts.layout)}", _notes(facts, loaded))
    for name, split in facts.splits.items():
        counts = {
            "shards": len(split.shards),
            "examples": split.examples,
            "tokens": split.tokens,
            "utilisation": split.utilisation,
            "documents": split.documents,
            "words": split.words,
            "bytes": split.bytes,
        }
        contents.statistics.append(SplitStatistics(name, counts, split.length_histogram))
    name = next(iter(facts.splits))
    if facts.layout == TABLE:
        contents.examples = _format_rows(ExampleTables(path, name, check_content=False), loaded, examples)
    else:
        full = [shard for shard in facts.splits[name].shards if shard.tokens]
        for shard in full[:1]:
            contents.examples = _format_documents(require_shard(path, shard, check_content=False), loaded, examples)
    return contents


def _notes(facts: Any, loaded: LoadedTokenizer | None) -> dict[str, str]:
    """Return the tokenizer and settings in a manifest, formatted."""
    kind = f"{loaded.kind}, " if loaded else ""
    notes = {"tokenizer": f"{kind}{facts.tokenizer.vocabulary_size:,} tokens, sha256 {facts.tokenizer.sha256[:12]}…"}
    special = {name: token for name, token in facts.tokenizer.special.items() if token is not None}
    if special:
        notes["special"] = ", ".join(f"{name} {token}" for name, token in special.items())
    if facts.settings:
        notes["settings"] = ", ".join(f"{key} {value}" for key, value in _flat(facts.settings))
    return notes


def _stream(path: Path, loaded: LoadedTokenizer | None, examples: int) -> Contents:
    opened = open_indexed(path)
    facts = _sidecar(opened.path)
    _require_recorded(opened, facts)
    _require_tokenizer(path, facts.get("tokenizer_sha256"), loaded)
    histogram: list[list[int]] = []
    for first in range(0, opened.documents, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, opened.documents)
        histogram = summed([histogram, length_histogram(np.diff(opened.starts(first, last)))])
    counts = {"tokens": len(opened.tokens), "documents": opened.documents, "sequences": len(opened.sizes)}
    counts = {name: count for name, count in counts.items() if name != "sequences" or count != opened.documents}
    notes = {"type": str(opened.tokens.dtype), "index": index_of(opened.path).name}
    shown = _format_documents(opened.path, loaded, examples)
    return Contents(
        opened.path, "a stream of tokens in Megatron-LM's format", notes, [SplitStatistics("all", counts, histogram)], shown
    )


def _table(path: Path, loaded: LoadedTokenizer | None, examples: int) -> Contents:
    table = ExampleTable(path)
    _require_tokenizer(path, table.facts.get("tokenizer_sha256"), loaded)
    lengths = np.concatenate([_lengths(table, first) for first in range(0, len(table), ROWS_AT_ONCE)] or [np.empty(0, int)])
    counts: dict[str, Any] = {"examples": len(table), "tokens": int(lengths.sum())}
    if "length" in table.columns and len(table):
        counts["utilisation"] = counts["tokens"] / (len(table) * int(table.columns["input_ids"].width or 1))
    columns = ", ".join(f"{column.name} {column.kind}{_width(column)}" for column in table.columns.values())
    notes = {"columns": columns}
    if settings := table.facts.get("settings"):
        notes["settings"] = ", ".join(f"{key} {value}" for key, value in _flat(settings))
    kind = f"a table of {table.facts.get('objective', 'unknown')} examples"
    shown = _format_rows(table, loaded, examples)
    return Contents(path, kind, notes, [SplitStatistics("all", counts, length_histogram(lengths))], shown)


def _format_rows(table: RowTable, loaded: LoadedTokenizer | None, examples: int) -> list[tuple[str, list[str]]]:
    texts, shown = TokenTexts(loaded), []
    for number in _spread(len(table), examples):
        row = {name: _row(table, name, number) for name in table.columns}
        if "source" in row:
            lines = [f"{name}: {_cut(row[name].tolist(), lambda tokens: texts.line(tokens))}" for name in ("source", "target")]
        elif "length" in row:
            lines = _format_masked(row, row.get("word_starts"), texts)
        else:
            lines = [f"{name}: {str(value)[:60]}" for name, value in row.items()]
        shown.append((f"example {number:,}", lines))
    return shown


def _row(table: RowTable, name: str, number: int) -> Any:
    found = table.rows(name, np.array([number]))
    return found.values if isinstance(found, Ragged) else found[0]


def _format_masked(row: Mapping[str, Any], starts: npt.NDArray[np.bool_] | None, texts: TokenTexts) -> list[str]:
    """Return the lines of a row of a masked table, with a second segment on lines of its own."""
    length, second = int(row["length"]), int(row["second_start"])
    tokens = row["input_ids"][:length].tolist()
    count = int(row.get("masked_count", 0))
    labels = dict(zip(row.get("masked_positions", [])[:count], row.get("masked_labels", [])[:count], strict=True))
    labels = {int(position): int(label) for position, label in labels.items()}
    begins = None if starts is None else starts.tolist()

    def part(first: int, last: int) -> str:
        inside = {position - first: label for position, label in labels.items() if first <= position < last}
        flags = None if begins is None else begins[first:last]
        return _cut(tokens[first:last], lambda shown: texts.line(shown, flags, inside))

    label = {0: "the second part follows the first", 1: "the second part is random"}.get(int(row["next_sentence_label"]))
    lines = [part(0, second), *([part(second, length)] if second < length else [])]
    masked = f"{count} masked" if "masked_count" in row else "masks are drawn at reading time"
    return [*lines, f"({length} tokens, {masked}{f'; {label}' if label else ''})"]


def _format_documents(path: Path, loaded: LoadedTokenizer | None, examples: int) -> list[tuple[str, list[str]]]:
    opened, texts, shown = open_indexed(path), TokenTexts(loaded), []
    for number in _spread(opened.documents, examples):
        start, stop = (int(offset) for offset in opened.starts(number, number + 1))
        tokens = opened.tokens[start : min(stop, start + SHOWN)].tolist()
        text = texts.line([int(token) for token in tokens])
        left = stop - start - len(tokens)
        shown.append((f"document {number:,}", [text + (f" … {left:,} more tokens" if left else "")]))
    return shown


def _cut(tokens: list[Any], words: Callable[[list[Any]], str]) -> str:
    left = len(tokens) - SHOWN
    return words(tokens[:SHOWN]) + (f" … {left:,} more tokens" if left > 0 else "")


def _lengths(table: ExampleTable, first: int) -> npt.NDArray[np.int64]:
    """Return the tokens of each row, without padding."""
    indices = np.arange(first, min(first + ROWS_AT_ONCE, len(table)))
    if "length" in table.columns:
        return np.asarray(table.rows("length", indices), dtype=np.int64)
    ragged = [name for name, column in table.columns.items() if column.width == "ragged"]
    if not ragged:
        width = next((table.columns[name].width for name in ("input_ids", "tokens") if name in table.columns), 0)
        return np.full(len(indices), width, dtype=np.int64)
    return np.asarray(sum(table.rows(name, indices).sizes for name in ragged), dtype=np.int64)


def _width(column: Column) -> str:
    return "" if column.width is None else "[…]" if column.width == "ragged" else f"[{column.width}]"


def _layout(layout: str) -> str:
    return "a table" if layout == TABLE else "a stream of tokens"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in settings.items():
        flat += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return flat


def _spread(size: int, wanted: int) -> list[int]:
    """Return `wanted` numbers below `size`, evenly spread from 0 on."""
    count = min(size, wanted)
    return [number * size // count for number in range(count)]


def _sidecar(path: Path) -> Mapping[str, Any]:
    return read_sidecar(path) if sidecar_of(path).exists() else {}


def _require_recorded(opened: IndexedFile, facts: Mapping[str, Any]) -> None:
    """Raise an error for a pair of files that are not those of its sidecar, as far as that is known without reading all tokens.

    An index may fit its file and still be another one: with other ends of documents, or another type of the same width.
    """
    index = index_of(opened.path)
    found: dict[str, Any] = {"size": opened.path.stat().st_size, "tokens": len(opened.tokens)}
    if "idx_sha256" in facts:
        found["idx_sha256"] = sha256_of(index)
    for name, value in found.items():
        if name in facts and facts[name] != value:
            raise RelmError(
                f"{opened.path}: {name} of it and {index.name} is {value}, {sidecar_of(opened.path).name} says {facts[name]}: "
                f"damaged, or another file; {AGAIN_SHARD}"
            )


def _require_tokenizer(path: Path, sha256: str | None, loaded: LoadedTokenizer | None) -> None:
    if loaded is not None and sha256 is not None and loaded.sha256 != sha256:
        raise RelmError(
            f"{loaded.path}: sha256 is {loaded.sha256}, but {path} was made with a tokenizer of sha256 {sha256}; "
            "give the tokenizer that belongs to it"
        )
