"""The manifest lists all shards of examples with their hashes; training depends on this one file."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from relm.artifact import read_json, read_sidecar, sha256_of, sidecar_of, write_json
from relm.errors import RelmError
from relm.recipes.objectives import OBJECTIVES, TABLE, TOKEN_STREAM

LAYOUTS = (TOKEN_STREAM, TABLE)
AGAIN = "make the manifest again"
AGAIN_SHARD = "delete it and its sidecar, and run the same command again"
Facts = TypeVar("Facts")
Count = Annotated[int, Field(ge=0)]
Histogram = list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
# Facts that all shards share.
AGREED = ("objective", "dtype", "tokenizer_sha256", "vocabulary_size", "layout", "special", "end_of_text_id", "settings")


@dataclass(frozen=True)
class ShardFacts:
    """The sidecar of a shard."""

    sha256: str
    size: Count
    objective: str
    dtype: str
    tokens: Count
    documents: Count
    words: Count
    bytes: Count
    tokenizer_sha256: str
    vocabulary_size: Count
    layout: str = TOKEN_STREAM
    special: dict[str, Count | None] = field(default_factory=dict)
    end_of_text_id: Count | None = None
    """In sidecars without `special`."""
    settings: dict[str, Any] = field(default_factory=dict)
    examples: Count | None = None
    idx_sha256: str | None = None
    source: str | None = None
    length_histogram: Histogram = field(default_factory=list)


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer that all examples were made with."""

    sha256: str
    vocabulary_size: Count
    end_of_text_id: Count | None
    special: dict[str, Count | None] = field(default_factory=dict)
    """Name (end_of_text, pad, unk, cls, sep, mask) -> id or null; empty: not recorded."""

    @property
    def specials(self) -> dict[str, int | None]:
        """Return `special`, or only the end of text in older manifests."""
        return self.special or {"end_of_text": self.end_of_text_id}


@dataclass(frozen=True)
class Shard:
    """One `.bin` file of tokens, or one table."""

    file: str
    """Path relative to the manifest."""
    sha256: str
    size: Count
    """Size in bytes."""
    dtype: str
    """Type of tokens, uint16 or int32."""
    tokens: Count
    """Number of tokens, ends of text included, padding excluded."""
    documents: Count
    examples: Count | None = None
    """Rows of a table."""
    idx_sha256: str | None = None
    """sha256 of the `.idx` of a `.bin`."""
    source: str | None = None
    """sha256 of its documents."""


@dataclass(frozen=True)
class Split:
    """The shards of one split, in order, and their sums."""

    tokens: Count
    documents: Count
    words: Count
    """Whitespace-separated words of the source text."""
    bytes: Count
    """Bytes of the source text in UTF-8."""
    shards: list[Shard]
    examples: Count | None = None
    """Rows of all tables."""
    utilisation: float | None = None
    """Share of tokens in the positions of rows of a fixed length; the rest is padding."""
    length_histogram: Histogram = field(default_factory=list)
    """[longest, count] of documents, or rows of tables, with more tokens than the previous bound; empty: not recorded."""


@dataclass(frozen=True)
class Manifest:
    """All splits of one dataset's examples."""

    objective: str
    tokenizer: TokenizerFacts
    splits: Annotated[dict[str, Split], Field(min_length=1)]
    layout: str = TOKEN_STREAM
    """tokens: a stream of tokens, read in windows; table: rows."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The objective's keys that decide the stored examples; empty: not recorded."""

    def split(self, name: str, path: Path) -> list[Shard]:
        """Return the shards of a split; `path` is the path of this manifest, for messages."""
        if name not in self.splits:
            raise RelmError(f"{path}: unknown split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name].shards


def write_manifest(shards: Mapping[str, list[Path]], output: Path) -> str:
    """Write the manifest of finished shards from their sidecars, in the order of each split; return a sentence."""
    manifest = build_manifest(shards, output)
    write_json(output, asdict(manifest))
    counts = "; ".join(f"{name}: {_format_split(split)}" for name, split in manifest.splits.items())
    return f"listed {sum(map(len, shards.values())):,} shards; {counts}"


def build_manifest(shards: Mapping[str, list[Path]], output: Path) -> Manifest:
    """Return the manifest of finished shards from their sidecars; `output` is its path."""
    found = {
        path: _validate(ShardFacts, read_sidecar(path), str(sidecar_of(path)), AGAIN_SHARD)
        for paths in shards.values()
        for path in paths
    }
    agreed = _require_agreement(found)
    for path, facts in found.items():
        require_possible_counts(facts, str(sidecar_of(path)), AGAIN_SHARD)
    splits = {name: _split(name, {path: found[path] for path in paths}, agreed, output) for name, paths in shards.items()}
    end_of_text = agreed.special.get("end_of_text", agreed.end_of_text_id)
    tokenizer = TokenizerFacts(agreed.tokenizer_sha256, agreed.vocabulary_size, end_of_text, agreed.special)
    return Manifest(agreed.objective, tokenizer, splits, agreed.layout, agreed.settings)


# Bytes of a token in a stream.
_WIDTHS = {"uint16": 2, "int32": 4}


def require_possible_counts(facts: "ShardFacts | Shard", place: str, remedy: str = AGAIN) -> None:
    """Raise RelmError if the counts of a stream of tokens contradict its size; `place` is the file, for messages."""
    if facts.examples is not None:
        return
    if (width := _WIDTHS.get(facts.dtype)) is None:
        raise RelmError(f"{place}: dtype: expected {' or '.join(_WIDTHS)}, found {facts.dtype!r:.80}; {remedy}")
    if facts.tokens * width != facts.size:
        raise RelmError(
            f"{place}: expected {facts.tokens:,} tokens of {width} bytes, found a file of {facts.size:,} bytes; {remedy}"
        )
    if facts.documents > facts.tokens:
        raise RelmError(
            f"{place}: expected at most {facts.tokens:,} documents, one per token, found {facts.documents:,}; {remedy}"
        )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; raise RelmError with the key where a key or type is wrong."""
    manifest = _validate(Manifest, read_json(path), str(path), AGAIN)
    for key, known in (("objective", OBJECTIVES.names), ("layout", LAYOUTS)):
        if (found := getattr(manifest, key)) not in known:
            raise RelmError(f"{path}: {key}: expected {', '.join(known)}, found {found!r}; {AGAIN}")
    for name, split in manifest.splits.items():
        for number, shard in enumerate(split.shards):
            require_possible_counts(shard, f"{path}: splits.{name}.shards[{number}]")
        for key in ("tokens", "documents") if split.shards else ():
            count, expected = getattr(split, key), sum(getattr(shard, key) for shard in split.shards)
            if count != expected:
                raise RelmError(
                    f"{path}: splits.{name}.{key}: expected {expected:,} as in its shards, found {count:,}; {AGAIN}"
                )
    return manifest


def _validate(kind: type[Facts], value: Any, place: str, remedy: str) -> Facts:
    """Return a dataclass built from a JSON value, whose keys and types are checked."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
    key = ".".join(map(str, fault["loc"]))
    raise RelmError(f"{place}: {key}: {fault['msg']}, found {fault['input']!r:.80}; {remedy}".replace(": : ", ": "))


def require_shard(manifest: Path, shard: Shard, check_content: bool) -> Path:
    """Return a shard's path, after comparing the shard and its `.idx`, if it has one, with the manifest.

    `check_content` reads both files to compare their sha256; otherwise only the shard's size is compared.
    """
    path = manifest.parent / shard.file
    if not path.exists():
        raise RelmError(f"{path}: no such file, although {manifest} lists it; {AGAIN_SHARD}")
    if path.stat().st_size != shard.size:
        raise RelmError(f"{path}: has {path.stat().st_size:,} bytes, but {manifest} says {shard.size:,}; {AGAIN_SHARD}")
    if check_content and (found := sha256_of(path)) != shard.sha256:
        raise RelmError(f"{path}: changed: sha256 is {found}, but {manifest} says {shard.sha256}; {AGAIN_SHARD}")
    index = path.with_suffix(".idx")
    if check_content and shard.idx_sha256 and (not index.exists() or sha256_of(index) != shard.idx_sha256):
        raise RelmError(
            f"{index}: not the index that {manifest} lists; delete {path.name} and its sidecar, and make both again"
        )
    return path


def _require_agreement(found: Mapping[Path, ShardFacts]) -> ShardFacts:
    """Return the facts of the first shard, and raise RelmError if another shard differs in one that all must share."""
    if not found:
        raise RelmError("manifest: expected at least one shard, found none")
    first, agreed = next(iter(found.items()))
    for path, facts in found.items():
        for key in AGREED:
            if (value := getattr(facts, key)) != getattr(agreed, key):
                raise RelmError(
                    f"{path}: {key} is {value}, but {first} has {getattr(agreed, key)}; "
                    "make all shards with one tokenizer and one objective"
                )
    return agreed


def _split(name: str, found: Mapping[Path, ShardFacts], agreed: ShardFacts, output: Path) -> Split:
    table = agreed.layout == TABLE
    keys = ("tokens", "documents", "words", "bytes", *(["examples"] if table else []))
    sums = {key: sum(getattr(facts, key) or 0 for facts in found.values()) for key in keys}
    if not sums["tokens"] or not sums.get("examples", 1):
        raise RelmError(
            f"{output}: split {name} has no {'examples' if sums['documents'] else 'documents'} in any shard; "
            "for few documents, lower held_out_one_in in the dataset's file"
        )
    length = agreed.settings.get("sequence_length") if table else None
    names = [each.name for each in fields(Shard) if each.name != "file"]
    return Split(
        **sums,
        shards=[
            Shard(Path(os.path.relpath(path, output.parent)).as_posix(), **{key: getattr(facts, key) for key in names})
            for path, facts in found.items()
        ],
        utilisation=sums["tokens"] / (sums["examples"] * length) if length else None,
        length_histogram=summed([facts.length_histogram for facts in found.values()]),
    )


@dataclass
class ExampleCounts:
    """Sums over examples for their sidecar."""

    tokens: int = 0
    documents: int = 0
    words: int = 0
    bytes: int = 0
    length_histogram: list[list[int]] = field(default_factory=list)
    """[longest, count], as in `Split`."""

    def add(self, tokens: int, documents: int, words: int, text_bytes: int, lengths: npt.NDArray[np.integer]) -> None:
        """Add some examples to the sums."""
        self.tokens += tokens
        self.documents += documents
        self.words += words
        self.bytes += text_bytes
        self.length_histogram = summed([self.length_histogram, length_histogram(lengths)])


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
