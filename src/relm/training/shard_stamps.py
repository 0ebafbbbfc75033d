"""Shards that a run has hashed already: to go on, it need not read all its data once more, however much there is.

`shards.json`, in the run folder, has each file's size, the times of its last changes, its number and its device as they were
just before it was hashed. A file of which all of that is the same has not been written since.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relm.artifact import read_json, stamp_of, write_json
from relm.errors import RelmError
from relm.examples.manifest import read_manifest

RECORD = "shards.json"


@contextmanager
def known_shards(folder: Path, manifest: Path, splits: Iterable[str], goes_on: bool, writes: bool) -> Iterator[bool]:
    """Within it, the shards are to be opened; it gives whether their content has to be hashed, and notes that this was done.

    Args:
        folder: of the run.
        manifest: of the shards.
        splits: those that will be opened.
        goes_on: whether there is a checkpoint; a run that begins hashes everything.
        writes: whether this process is the one that writes files.

    Raises:
        RelmError: the manifest has no such split.
    """
    stamps = stamps_of(manifest, splits)
    recorded = _recorded(folder / RECORD) if goes_on else {}
    hashes = any(recorded.get(file) != stamp for file, stamp in stamps.items())
    yield hashes
    if hashes and writes:
        write_json(folder / RECORD, stamps)


def stamps_of(manifest: Path, splits: Iterable[str]) -> dict[str, list[Any]]:
    """File -> the sha256 that the manifest has of it, and what the system tells of it: of an absent one nothing."""
    facts = read_manifest(manifest)
    stamps: dict[str, list[Any]] = {}
    for shard in (shard for split in splits for shard in facts.split(split, manifest)):
        path = manifest.parent / shard.file
        stamps[str(path)] = [shard.sha256, *_told_of(path)]
        if shard.idx_sha256:
            stamps[str(path.with_suffix(".idx"))] = [shard.idx_sha256, *_told_of(path.with_suffix(".idx"))]
    return stamps


def _told_of(path: Path) -> list[int]:
    try:
        return stamp_of(path)
    except FileNotFoundError:
        return []


def _recorded(path: Path) -> dict[str, Any]:
    """What was noted; nothing, where that is absent or no longer to be read."""
    try:
        known = read_json(path)
    except RelmError:
        return {}
    return known if isinstance(known, dict) else {}
