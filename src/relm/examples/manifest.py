"""The manifest: the content of all shards of examples, with their hashes. A recipe's training depends on this one file."""

import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import numpy as np
import numpy.typing as npt

from relm.artifact import read_json, read_sidecar, sha256_of, sidecar_of, write_json
from relm.errors import RelmError
from relm.formatting import escape_controls
from relm.json_shapes import COUNT, LINE, Kind, Nullable, is_count, require_shape
from relm.recipes.objectives import OBJECTIVES, TABLE, TOKEN_STREAM

LAYOUTS = (TOKEN_STREAM, TABLE)
AGAIN = "make the manifest again"
AGAIN_SHARD = "delete it with its sidecar and give the same command again"
# Facts that all shards share. Sidecars of older versions lack those with a default.
AGREED: dict[str, Any] = {
    "objective": MISSING,
    "dtype": MISSING,
    "tokenizer_sha256": MISSING,
    "vocabulary_size": MISSING,
    "layout": TOKEN_STREAM,
    "special": {},
    "end_of_text_id": None,
    "settings": {},
}


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer that all examples were made with."""

    sha256: str
    vocabulary_size: int
    end_of_text_id: int | None
    special: dict[str, int | None] = field(default_factory=dict)
    """Name (end_of_text, pad, unk, cls, sep, mask) -> id, or null; empty: not recorded."""

    @property
    def specials(self) -> dict[str, int | None]:
        """Return `special`, or the end of text alone, which older manifests record."""
        return self.special or {"end_of_text": self.end_of_text_id}


@dataclass(frozen=True)
class Shard:
    """One `.bin` file of tokens, or one table."""

    file: str
    """Path relative to the manifest."""
    sha256: str
    size: int
    """Size in bytes."""
    dtype: str
    """Type of tokens, uint16 or int32."""
    tokens: int
    """Count of tokens, with ends of text, without padding."""
    documents: int
    examples: int | None = None
    """Rows of a table."""
    idx_sha256: str | None = None
    """sha256 of the `.idx` beside a `.bin`."""
    source: str | None = None
    """sha256 of the documents that it was built from."""


@dataclass(frozen=True)
class Split:
    """The shards of one split, in order, and their sums."""

    tokens: int
    documents: int
    words: int
    """Whitespace-separated words of the source text."""
    bytes: int
    """Bytes of the source text in UTF-8."""
    shards: list[Shard]
    examples: int | None = None
    """Rows of all tables."""
    utilisation: float | None = None
    """Tokens as a share of the positions in rows of a fixed length; the rest is padding."""
    length_histogram: list[list[int]] = field(default_factory=list)
    """[longest, count] of documents, or rows of tables, with more tokens than the previous bound; empty: not recorded."""


@dataclass(frozen=True)
class Manifest:
    """All splits of one dataset's examples."""

    objective: str
    tokenizer: TokenizerFacts
    splits: dict[str, Split]
    layout: str = TOKEN_STREAM
    """tokens: a stream of tokens, read in windows; table: rows."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The objective's keys that decide the stored examples; empty: not recorded."""

    def split(self, name: str, path: Path) -> list[Shard]:
        """Return the shards of a split; `path` is this manifest's, for the error message.

        Raises:
            RelmError: there is no such split.
        """
        if name not in self.splits:
            raise RelmError(f"{path}: has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name].shards


def write_manifest(shards: Mapping[str, list[Path]], output: Path) -> str:
    """Write the manifest of finished shards, from their sidecars alone.

    Args:
        shards: split -> its files, in order.
        output: the manifest.

    Raises:
        RelmError: a sidecar is absent or lacks a fact, shards differ in tokenizer, objective or settings, or a split is empty.
    """
    sidecars: dict[Path, Mapping[str, Any]] = {shard: read_sidecar(shard) for paths in shards.values() for shard in paths}
    for shard, facts in sidecars.items():
        require_shape(facts, _SIDECAR, str(sidecar_of(shard)))
    agreed = _agreed(sidecars)
    for shard, facts in sidecars.items():
        require_possible_counts(facts, str(sidecar_of(shard)), AGAIN_SHARD)
    splits = {name: _split(name, {path: sidecars[path] for path in paths}, agreed, output) for name, paths in shards.items()}
    special = agreed["special"]
    end_of_text = special["end_of_text"] if special else agreed["end_of_text_id"]
    tokenizer = TokenizerFacts(agreed["tokenizer_sha256"], agreed["vocabulary_size"], end_of_text, special)
    write_json(output, asdict(Manifest(agreed["objective"], tokenizer, splits, agreed["layout"], agreed["settings"])))
    return f"listed {len(sidecars):,} shards; " + "; ".join(f"{name}: {_format_split(split)}" for name, split in splits.items())


# Facts of a sidecar that a manifest takes over; which of them must be there is decided with the objective.
_OPTIONAL_COUNT, _OPTIONAL_LINE = Nullable(COUNT), Nullable(LINE)
_HISTOGRAM = [Kind("a pair of counts", lambda value: isinstance(value, list) and list(map(is_count, value)) == [True, True])]
_SIDECAR = {
    "file": LINE,
    "sha256": LINE,
    "size": COUNT,
    "dtype?": LINE,
    **{f"{key}?": COUNT for key in ("tokens", "documents", "words", "bytes")},
    **{f"{key}?": _OPTIONAL_COUNT for key in ("examples", "vocabulary_size", "end_of_text_id")},
    **{f"{key}?": _OPTIONAL_LINE for key in ("idx_sha256", "source", "objective", "layout", "tokenizer_sha256")},
    "special?": Nullable({"*": _OPTIONAL_COUNT}),
    "length_histogram?": _HISTOGRAM,
}
# Bytes of a token in a stream.
_WIDTHS = {"uint16": 2, "int32": 4}


def require_possible_counts(facts: Mapping[str, Any], place: str, remedy: str = AGAIN) -> None:
    """Raise RelmError if a stream of tokens has other counts than its size in bytes allows.

    Args:
        facts: `size`, `dtype`, `tokens` and `documents` of a shard; a table, which has `examples`, is compressed and passes.
        place: the file that states them, for the message.
        remedy: what the user can do.
    """
    if facts.get("examples") is not None:
        return
    if (width := _WIDTHS.get(facts.get("dtype", ""))) is None:
        raise RelmError(f"{place}: dtype: expected {' or '.join(_WIDTHS)}, found {facts.get('dtype')!r:.80}; {remedy}")
    tokens, documents = facts.get("tokens", 0), facts.get("documents", 0)
    if tokens * width != facts["size"]:
        raise RelmError(
            f"{place}: {tokens:,} tokens of {width} bytes are not the {facts['size']:,} bytes of its file; {remedy}"
        )
    if documents > tokens:
        raise RelmError(f"{place}: {documents:,} documents with {tokens:,} tokens: each has at least one; {remedy}")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest in a file.

    Raises:
        RelmError: the file is absent or lacks the keys and types of a manifest; names the key.
    """
    manifest = _built(Manifest, read_json(path), str(path))
    for key, known in (("objective", OBJECTIVES.names), ("layout", LAYOUTS)):
        if (found := getattr(manifest, key)) not in known:
            raise RelmError(f"{path}: {key}: expected {', '.join(known)}, found {found!r}; {AGAIN}")
    _require_sums(manifest, path)
    return manifest


def _require_sums(manifest: Manifest, path: Path) -> None:
    """Raise RelmError if the counts of a split are not the sums of its shards', or those of a shard contradict its size."""
    if not manifest.splits:
        raise RelmError(f"{path}: splits: there is none; {AGAIN}")
    for name, split in manifest.splits.items():
        require_shape(split.length_histogram, _HISTOGRAM, f"{path}: splits.{name}.length_histogram", AGAIN)
        for number, shard in enumerate(split.shards):
            require_possible_counts(asdict(shard), f"{path}: splits.{name}.shards[{number}]")
        for key in ("tokens", "documents") if split.shards else ():
            found, expected = getattr(split, key), sum(getattr(shard, key) for shard in split.shards)
            if found != expected:
                raise RelmError(f"{path}: splits.{name}.{key} is {found:,}, but its shards have {expected:,}; {AGAIN}")


def require_shard(manifest: Path, shard: Shard, check_content: bool) -> Path:
    """Return a shard's path, after comparing the shard and its `.idx`, if it has one, with the manifest.

    Args:
        check_content: compare the sha256 of both, which reads both files, not the shard's size alone.
    """
    path = manifest.parent / shard.file
    if not path.exists():
        raise RelmError(f"{path}: no such file, although {manifest} lists it; {AGAIN_SHARD}")
    if path.stat().st_size != shard.size:
        raise RelmError(f"{path}: has {path.stat().st_size:,} bytes, {manifest} says {shard.size:,}; {AGAIN_SHARD}")
    if check_content and (found := sha256_of(path)) != shard.sha256:
        raise RelmError(f"{path}: sha256 is {found}, {manifest} says {shard.sha256}: changed since; {AGAIN_SHARD}")
    index = path.with_suffix(".idx")
    if check_content and shard.idx_sha256 and (not index.exists() or sha256_of(index) != shard.idx_sha256):
        raise RelmError(
            f"{index}: not the index that {manifest} lists; delete {path.name} with its sidecar and make both again"
        )
    return path


def _agreed(sidecars: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts that all shards must share."""
    if not sidecars:
        raise RelmError("manifest: there are no shards; give it at least one")
    first = next(iter(sidecars))
    agreed = {key: _fact(sidecars, first, key, default) for key, default in AGREED.items()}
    for path in sidecars:
        for key, default in AGREED.items():
            if (found := _fact(sidecars, path, key, default)) != agreed[key]:
                raise RelmError(
                    f"{path}: {key} is {found}, but {first} has {agreed[key]}; "
                    "make all shards with one tokenizer and one objective"
                )
    return agreed


def _fact(sidecars: Mapping[Path, Mapping[str, Any]], path: Path, key: str, default: Any = MISSING) -> Any:
    if key in sidecars[path]:
        return sidecars[path][key]
    if default is MISSING:
        raise RelmError(f"{sidecar_of(path)}: lacks {key}; delete it and {path.name}, and run the step that makes them")
    return default


def _split(name: str, sidecars: Mapping[Path, Mapping[str, Any]], agreed: Mapping[str, Any], output: Path) -> Split:
    table = agreed["layout"] == TABLE
    keys = ("tokens", "documents", "words", "bytes", *(["examples"] if table else []))
    sums = {key: sum(_fact(sidecars, path, key) for path in sidecars) for key in keys}
    if not sums["tokens"] or not sums.get("examples", 1):
        raise RelmError(
            f"{output}: split {name} has no {'examples' if sums['documents'] else 'documents'} in any shard; "
            "with few documents, a smaller held_out_one_in in the dataset's file leaves some in both splits"
        )
    shards = []
    for path in sidecars:
        facts = {field.name: _fact(sidecars, path, field.name, field.default) for field in fields(Shard)}
        shards.append(Shard(**{**facts, "file": Path(os.path.relpath(path, output.parent)).as_posix()}))
    length = agreed["settings"].get("sequence_length") if table else None
    return Split(
        **sums,
        shards=shards,
        utilisation=sums["tokens"] / (sums["examples"] * length) if length else None,
        length_histogram=summed([_fact(sidecars, path, "length_histogram", []) for path in sidecars]),
    )


def length_histogram(sizes: npt.NDArray[np.integer]) -> list[list[int]]:
    """Return [longest, count] of lengths, with powers of two as bounds; empty ones count as one token.

    >>> length_histogram(np.array([0, 1, 2, 3, 4, 5, 1024]))
    [[1, 2], [2, 1], [4, 2], [8, 1], [1024, 1]]
    """
    exponents = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    return [[2**exponent, count] for exponent, count in enumerate(np.bincount(exponents).tolist()) if count]


def summed(histograms: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the sum of histograms, bound by bound.

    >>> summed([[[1, 2], [4, 1]], [[2, 5], [4, 1]]])
    [[1, 2], [2, 5], [4, 2]]
    """
    counts: dict[int, int] = {}
    for histogram in histograms:
        for bound, count in histogram:
            counts[bound] = counts.get(bound, 0) + count
    return [[bound, counts[bound]] for bound in sorted(counts)]


def _format_split(split: Split) -> str:
    rows = "" if split.examples is None else f" in {split.examples:,} examples"
    share = "" if split.utilisation is None else f", {split.utilisation:.1%} utilisation"
    return f"{split.tokens:,} tokens{rows} of {split.documents:,} documents{share}"


Facts = TypeVar("Facts")


def _built(kind: type[Facts], value: Any, place: str) -> Facts:
    """Return a dataclass built from a JSON object, whose keys and types are checked."""
    if not isinstance(value, dict):
        raise RelmError(f"{place}: expected an object, found {type(value).__name__}; {AGAIN}")
    built: dict[str, Any] = {}
    for known in fields(kind):  # type: ignore[arg-type]
        if known.name in value:
            built[known.name] = _value(known.type, value[known.name], f"{place}: {known.name}")
        elif known.default is MISSING and known.default_factory is MISSING:
            raise RelmError(f"{place}: lacks {known.name}; {AGAIN}")
    return kind(**built)


def _value(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _built(kind, value, place)  # type: ignore[arg-type]
    if get_origin(kind) is types.UnionType:  # X | None
        return None if value is None else _value(get_args(kind)[0], value, place)
    if get_origin(kind) is list:
        return [_value(get_args(kind)[0], item, f"{place}[{n}]") for n, item in enumerate(_typed(list, value, place))]
    if get_origin(kind) is dict:
        return {name: _value(get_args(kind)[1], item, f"{place}.{name}") for name, item in _typed(dict, value, place).items()}
    return _typed(kind, value, place)


def _typed(kind: type, value: Any, place: str) -> Any:
    if kind is int:
        kind_words, fits = COUNT
    else:
        kind_words, fits = kind.__name__, lambda found: isinstance(found, kind) and not isinstance(found, bool)
    if not fits(value):
        raise RelmError(f"{place}: expected {kind_words}, found {escape_controls(repr(value)[:80])}; {AGAIN}")
    return value
