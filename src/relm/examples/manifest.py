"""The manifest: the content of all shards of examples, with their hashes. A recipe's training depends on this one file."""

import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import numpy.typing as npt

from relm.artifact import read_sidecar, sha256_of, sidecar_of, write_json
from relm.errors import RelmError
from relm.examples.best_fit import PackingCounts
from relm.json_shapes import ANY, COUNT, LINE, NUMBER, Kind, Nullable, is_count, read_shaped, require_shape
from relm.recipes.objectives import CROPPED_SHARE_LIMIT, OBJECTIVES, TABLE, TOKEN_STREAM

LAYOUTS = (TOKEN_STREAM, TABLE)
WARNED_SHARE = 0.5
"""Share of cropped tokens above which a warning is shown."""
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
    packing: PackingCounts | None = None
    """Documents that lost tokens in rows of whole documents; None, and not written: other examples."""


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
        RelmError: a sidecar is absent or lacks a fact, shards differ in tokenizer, objective or settings, a split is empty, or
            packing cropped more of the training documents than their settings allow.
    """
    sidecars: dict[Path, Mapping[str, Any]] = {shard: read_sidecar(shard) for paths in shards.values() for shard in paths}
    for shard, facts in sidecars.items():
        require_shape(facts, _SIDECAR, str(sidecar_of(shard)))
    agreed = _agreed(sidecars)
    splits = {name: _split(name, {path: sidecars[path] for path in paths}, agreed, output) for name, paths in shards.items()}
    if "train" in splits:
        _require_uncropped(splits["train"], agreed["settings"], output)
    special = agreed["special"]
    end_of_text = special["end_of_text"] if special else agreed["end_of_text_id"]
    tokenizer = TokenizerFacts(agreed["tokenizer_sha256"], agreed["vocabulary_size"], end_of_text, special)
    content = asdict(Manifest(agreed["objective"], tokenizer, splits, agreed["layout"], agreed["settings"]))
    for split in content["splits"].values():
        if split["packing"] is None:
            del split["packing"]
    write_json(output, content)
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
    "settings?": {"causal?": {"cropped_share_limit?": NUMBER}},
    "length_histogram?": _HISTOGRAM,
    "packing?": {key.name: COUNT for key in fields(PackingCounts)},
}


def read_manifest(path: Path) -> Manifest:
    """Read the manifest in a file.

    Raises:
        RelmError: the file is absent or lacks the keys and types of a manifest; names the key.
    """
    content = read_shaped(path, _make_shape(Manifest), AGAIN)
    manifest: Manifest = _build(Manifest, content)
    for key, known in (("objective", OBJECTIVES.names), ("layout", LAYOUTS)):
        if (found := getattr(manifest, key)) not in known:
            raise RelmError(f"{path}: {key}: expected {', '.join(known)}, found {found!r}; {AGAIN}")
    return manifest


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
    packed = [facts["packing"] for facts in sidecars.values() if "packing" in facts]
    summed_packing = {key.name: sum(counts[key.name] for counts in packed) for key in fields(PackingCounts)}
    packing = PackingCounts(**summed_packing) if packed else None
    width = length and length + (packing is not None)  # a row of whole documents has its last label too
    return Split(
        **sums,
        shards=shards,
        utilisation=sums["tokens"] / (sums["examples"] * width) if width else None,
        length_histogram=summed([_fact(sidecars, path, "length_histogram", []) for path in sidecars]),
        packing=packing,
    )


def _require_uncropped(split: Split, settings: Mapping[str, Any], output: Path) -> None:
    """Raise RelmError if packing cropped a larger share of the training tokens than the settings of the examples allow."""
    limit = settings.get("causal", {}).get("cropped_share_limit", CROPPED_SHARE_LIMIT)
    if split.packing is not None and (share := split.packing.cropped_share(split.tokens)) > limit:
        raise RelmError(
            f"{output}: packing: best_fit crops {share:.2%} of the training tokens, more than causal.cropped_share_limit: "
            f"{limit:g}, since documents are far longer than sequence_length: {settings.get('sequence_length')}. Use packing: "
            "stream or longer sequences, or set causal.cropped_share_limit: 1 in the phase"
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
    packing = "" if split.packing is None else f", {format_packing(split.packing, split.tokens)}"
    return f"{split.tokens:,} tokens{rows} of {split.documents:,} documents{share}{packing}"


def format_packing(packing: PackingCounts, tokens: int) -> str:
    """Return a phrase on the documents that lost tokens; the rows have `tokens`."""
    rest = f", {packing.left_out_tokens:,} tokens at the end left out" if packing.left_out_tokens else ""
    share = packing.cropped_share(tokens)
    warning = " (warning: over half are lost; longer sequences crop fewer)" if share > WARNED_SHARE else ""
    return f"{share:.1%} of tokens cropped from {packing.cropped_documents:,} documents{rest}{warning}"


def _make_shape(kind: Any) -> Any:
    """Return the shape of the JSON of a dataclass, or of a field's type."""
    if is_dataclass(kind):
        needed = {key.name: key.default is MISSING and key.default_factory is MISSING for key in fields(kind)}
        return {f"{key.name}{'' if needed[key.name] else '?'}": _make_shape(key.type) for key in fields(kind)}
    if get_origin(kind) is types.UnionType:  # X | None
        return Nullable(_make_shape(get_args(kind)[0]))
    if get_origin(kind) is list:
        return [_make_shape(get_args(kind)[0])]
    if get_origin(kind) is dict:
        return {"*": _make_shape(get_args(kind)[1])}
    return {int: COUNT, float: NUMBER, str: LINE}.get(kind, ANY)


def _build(kind: Any, value: Any) -> Any:
    """Return a dataclass, or a field's value, from JSON of its shape."""
    if is_dataclass(kind):
        return kind(**{key.name: _build(key.type, value[key.name]) for key in fields(kind) if key.name in value})  # type: ignore[operator]
    if value is None or not get_args(kind):
        return value
    *_, inner = [get_args(kind)[0]] if get_origin(kind) is types.UnionType else get_args(kind)
    if isinstance(value, list):
        return [_build(inner, item) for item in value]
    return {key: _build(inner, item) for key, item in value.items()} if get_origin(kind) is dict else _build(inner, value)
