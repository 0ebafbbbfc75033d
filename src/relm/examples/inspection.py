"""Format the content of a file of examples for a terminal: a few decoded examples with visible masks, and statistics."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.artifact import checked_sidecar, sidecar_of
from relm.corpus.documents import read_documents
from relm.errors import RelmError
from relm.examples.as_published.graphcore_gpt2 import read_document_sizes
from relm.examples.inspection_text import format_counts, format_example, format_note
from relm.examples.manifest import Manifest, Shard, build_manifest, read_manifest, require_shard
from relm.examples.storage import TokenStream
from relm.examples.table import ExampleTable, Ragged
from relm.examples.token_text import TokenTexts
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.formatting import escape_controls
from relm.recipes.objectives import TABLE

# The heading and the paragraphs of an example.
Example = tuple[str, list[str]]

# Tokens of an example to show; the rest is counted.
SHOWN = 160
SHOWN_CHARACTERS = 600  # of a document


def inspect(path: Path, tokenizer: Path | None, examples: int) -> str:
    """Describe a manifest, extracted documents, a table (.arrow), or a stream of tokens (.bin, .idx), for a terminal.

    It shows `examples` of the examples, spread over the file; without a tokenizer, as token ids.
    """
    by_suffix = {".json": _describe_manifest, ".jsonl": _describe_documents}
    by_suffix |= dict.fromkeys((".bin", ".idx", ".arrow"), _describe_shard)
    if not path.exists() and not path.with_suffix(".bin").exists():
        raise RelmError(f"{path}: no such file")
    if path.suffix not in by_suffix:
        raise RelmError(f"{path}: expected one of {', '.join(by_suffix)}; found a file that ends in {path.suffix or 'nothing'}")
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    return "\n".join(by_suffix[path.suffix](path, loaded, max(examples, 0)))


def _describe_documents(path: Path, loaded: LoadedTokenizer | None, examples: int) -> list[str]:
    """Return the lines on a file of extracted documents, with the beginning of some."""
    facts = checked_sidecar(path)
    if not {"documents", "words", "skipped"} <= set(facts):
        raise RelmError(
            f"{path}: expected an output of `relm extract`, or a manifest; its sidecar lacks the counts of documents"
        )
    lines = [str(path), "  extracted documents"]
    lines += format_counts("all", {name: facts[name] for name in ("documents", "words", "bytes")})
    lines += format_counts("skipped", facts["skipped"]) if any(facts["skipped"].values()) else []
    if unknown := facts.get("unknown_templates"):
        lines += format_counts("unknown", {escape_controls(f"{{{{{name}}}}}"): count for name, count in unknown.items()})
    wanted = set(_spread(facts["documents"], examples))
    for number, document in enumerate(read_documents(path)):
        if number in wanted:
            heading = f"document {number:,}: {escape_controls(document.title)}"
            lines += format_example(heading, [escape_controls(line) for line in document.text[:SHOWN_CHARACTERS].split("\n")])
    return lines


def _describe_manifest(path: Path, loaded: LoadedTokenizer | None, examples: int) -> list[str]:
    return _describe(path, path, read_manifest(path), loaded, examples, check_content=False)


def _describe_shard(path: Path, loaded: LoadedTokenizer | None, examples: int) -> list[str]:
    """Return the lines on one shard, by its sidecar."""
    shard = path.with_suffix(".bin") if path.suffix == ".idx" else path
    facts = build_manifest({"all": [shard]}, sidecar_of(shard))
    return _describe(shard, sidecar_of(shard), facts, loaded, examples, check_content=True)


def _describe(
    path: Path, listed_in: Path, facts: Manifest, loaded: LoadedTokenizer | None, examples: int, check_content: bool
) -> list[str]:
    """Return the lines on shards of examples, with some examples of the first that has any."""
    if loaded is not None:
        loaded.require_made(path, facts.tokenizer.sha256)
    is_table = facts.layout == TABLE
    lines = [str(path), f"  {facts.objective} examples, kept as {'a table' if is_table else 'a stream of tokens'}"]
    lines += [format_note(name, note) for name, note in _notes(facts, loaded).items()]
    for name, split in facts.splits.items():
        counted = ("examples", "tokens", "utilisation", "documents", "words", "bytes")
        counts = {"shards": len(split.shards)} | {key: getattr(split, key) for key in counted}
        lines += format_counts(name, counts, split.length_histogram)
    shard = next(shard for shard in next(iter(facts.splits.values())).shards if shard.tokens)
    first = require_shard(listed_in, shard, check_content)
    shown = _read_rows(first, loaded, examples) if is_table else _read_documents(listed_in, shard, loaded, examples)
    return [*lines, *(line for heading, paragraphs in shown for line in format_example(heading, paragraphs))]


def _notes(facts: Manifest, loaded: LoadedTokenizer | None) -> dict[str, str]:
    """Return the tokenizer and settings in a manifest, formatted."""
    kind = f"{loaded.kind}, " if loaded else ""
    notes = {"tokenizer": f"{kind}{facts.tokenizer.vocabulary_size:,} tokens, sha256 {facts.tokenizer.sha256[:12]}…"}
    special = {name: token for name, token in facts.tokenizer.special.items() if token is not None}
    if special:
        notes["special"] = ", ".join(f"{name} {token}" for name, token in special.items())
    if facts.settings:
        notes["settings"] = ", ".join(f"{key} {value}" for key, value in _flat(facts.settings))
    return notes


def _read_rows(path: Path, loaded: LoadedTokenizer | None, examples: int) -> Iterator[Example]:
    """Yield some rows of a table."""
    table, texts = ExampleTable(path), TokenTexts(loaded)
    for number in _spread(len(table), examples):
        row = {name: _row(table, name, number) for name in table.columns}
        if "source" in row:
            lines = [f"{name}: {_cut(row[name].tolist(), lambda tokens: texts.line(tokens))}" for name in ("source", "target")]
        elif "length" in row:
            lines = _format_masked(row, row.get("word_starts"), texts)
        else:
            lines = [f"{name}: {str(value)[:60]}" for name, value in row.items()]
        yield f"example {number:,}", lines


def _row(table: ExampleTable, name: str, number: int) -> Any:
    found = table.rows(name, np.array([number]))
    return found.values if isinstance(found, Ragged) else found[0]


def _format_masked(row: Mapping[str, Any], starts: npt.NDArray[np.bool_] | None, texts: TokenTexts) -> list[str]:
    """Return the lines of a row of a masked table, a second segment on separate lines."""
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


def _read_documents(listed_in: Path, shard: Shard, loaded: LoadedTokenizer | None, examples: int) -> Iterator[Example]:
    """Yield the beginnings of some documents of a stream."""
    stream, texts = TokenStream(listed_in, [shard], check_content=False), TokenTexts(loaded)
    ends = np.cumsum(read_document_sizes(listed_in, [shard]), dtype=np.int64)
    for number in _spread(shard.documents, examples):
        start, stop = int(ends[number - 1]) if number else 0, int(ends[number])
        tokens = stream.tokens(start, min(stop, start + SHOWN)).tolist()
        left = stop - start - len(tokens)
        yield f"document {number:,}", [texts.line(tokens) + (f" … {left:,} more tokens" if left else "")]


def _cut(tokens: list[Any], words: Callable[[list[Any]], str]) -> str:
    left = len(tokens) - SHOWN
    return words(tokens[:SHOWN]) + (f" … {left:,} more tokens" if left > 0 else "")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in settings.items():
        flat += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return flat


def _spread(size: int, wanted: int) -> list[int]:
    """Return `wanted` numbers below `size`, evenly spread from 0 on."""
    count = min(size, wanted)
    return [number * size // count for number in range(count)]
