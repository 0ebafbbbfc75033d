"""The manifest: what all shards of examples hold, with their hashes. A recipe's training depends on this one file."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from relm.artifact import read_json, sidecar_of, write_json
from relm.errors import RelmError

OBJECTIVES = ("causal",)
AGAIN = "make the manifest again"


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer that all examples were made with."""

    sha256: str
    vocabulary_size: int
    end_of_text_id: int


@dataclass(frozen=True)
class Shard:
    """One `.bin` file."""

    file: str
    """Relative to the manifest."""
    sha256: str
    size: int
    """In bytes."""
    dtype: str
    """uint16 or int32."""
    tokens: int
    """Ends of text included."""
    documents: int


@dataclass(frozen=True)
class Split:
    """The shards of one split, in order, and their sums."""

    tokens: int
    documents: int
    words: int
    """Whitespace-separated, of the source text."""
    bytes: int
    """Of the source text in UTF-8."""
    shards: list[Shard]


@dataclass(frozen=True)
class Manifest:
    """All splits of one dataset's examples."""

    objective: str
    tokenizer: TokenizerFacts
    splits: dict[str, Split]

    def split(self, name: str, path: Path) -> list[Shard]:
        """The shards of a split; `path` is this manifest's, for the message.

        Raises:
            RelmError: there is no such split.
        """
        if name not in self.splits:
            raise RelmError(f"{path}: has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name].shards


def write_manifest(shards: Mapping[str, list[Path]], output: Path) -> str:
    """Write the manifest of shards that are finished, from their sidecars alone.

    Args:
        shards: split -> its .bin files, in order.
        output: the manifest.

    Raises:
        RelmError: a sidecar is absent or lacks a fact, shards differ in tokenizer or objective, or a split has no tokens.
    """
    sidecars = {shard: read_json(sidecar_of(shard)) for paths in shards.values() for shard in paths}
    agreed = _agreed(sidecars)
    splits = {name: _split(name, {path: sidecars[path] for path in paths}, output) for name, paths in shards.items()}
    tokenizer = TokenizerFacts(agreed["tokenizer_sha256"], agreed["vocabulary_size"], agreed["end_of_text_id"])
    write_json(output, asdict(Manifest(agreed["objective"], tokenizer, splits)))
    words = "; ".join(f"{name}: {split.tokens:,} tokens of {split.documents:,} documents" for name, split in splits.items())
    return f"listed {len(sidecars):,} shards; {words}"


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        RelmError: the file is absent or has not the keys and types of a manifest; names the key.
    """
    content = read_json(path)
    manifest = _built(Manifest, content, str(path))
    if manifest.objective not in OBJECTIVES:
        raise RelmError(f"{path}: objective: expected {', '.join(OBJECTIVES)}, found {manifest.objective!r}; {AGAIN}")
    return manifest


def _agreed(sidecars: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    """The facts that all shards must share."""
    keys = ("objective", "dtype", "tokenizer_sha256", "vocabulary_size", "end_of_text_id")
    if not sidecars:
        raise RelmError("manifest: there are no shards; give it at least one")
    first = next(iter(sidecars))
    for path in sidecars:
        for key in keys:
            if _fact(sidecars, path, key) != _fact(sidecars, first, key):
                raise RelmError(
                    f"{path}: {key} is {sidecars[path][key]}, but {first} has {sidecars[first][key]}; "
                    "make all shards with one tokenizer and one objective"
                )
    return {key: sidecars[first][key] for key in keys}


def _fact(sidecars: Mapping[Path, Mapping[str, Any]], path: Path, key: str) -> Any:
    if key not in sidecars[path]:
        raise RelmError(f"{sidecar_of(path)}: lacks {key}; delete it and {path.name}, and run the step that makes them")
    return sidecars[path][key]


def _split(name: str, sidecars: Mapping[Path, Mapping[str, Any]], output: Path) -> Split:
    sums = {key: sum(_fact(sidecars, path, key) for path in sidecars) for key in ("tokens", "documents", "words", "bytes")}
    if not sums["tokens"]:
        raise RelmError(
            f"{output}: split {name} has no documents in any shard; with few documents, a smaller held_out_one_in in the "
            "dataset's file leaves some in both splits"
        )
    shards = []
    for path in sidecars:
        facts = {field.name: _fact(sidecars, path, field.name) for field in fields(Shard)}
        shards.append(Shard(**{**facts, "file": Path(os.path.relpath(path, output.parent)).as_posix()}))
    return Split(**sums, shards=shards)


Facts = TypeVar("Facts")


def _built(kind: type[Facts], value: Any, place: str) -> Facts:
    """A dataclass from a JSON object, its keys and types checked."""
    if not isinstance(value, dict):
        raise RelmError(f"{place}: expected an object, found {type(value).__name__}; {AGAIN}")
    built: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in value:
            raise RelmError(f"{place}: lacks {field.name}; {AGAIN}")
        built[field.name] = _value(field.type, value[field.name], f"{place}: {field.name}")
    return kind(**built)


def _value(kind: Any, value: Any, place: str) -> Any:
    if is_dataclass(kind):
        return _built(kind, value, place)  # type: ignore[arg-type]
    if kind == list[Shard]:
        return [_built(Shard, item, f"{place}[{number}]") for number, item in enumerate(_typed(list, value, place))]
    if kind == dict[str, Split]:
        return {name: _built(Split, item, f"{place}.{name}") for name, item in _typed(dict, value, place).items()}
    return _typed(kind, value, place)


def _typed(kind: type, value: Any, place: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RelmError(f"{place}: expected {kind.__name__}, found {value!r}; {AGAIN}")
    return value
