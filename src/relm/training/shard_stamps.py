"""The record of shards that a run has hashed already: a resumed run need not read all its data again.

`shards.json`, in the run folder, has each file's size, the times of its last changes, its inode and its device as they were
just before it was hashed. A file for which all of these are the same has not been written since.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relm.artifact import read_json, stamp_of, write_json
from relm.errors import RelmError
from relm.examples.manifest import read_manifest
from relm.recipes.run_folder import SHARDS


@contextmanager
def known_shards(folder: Path, manifest: Path, splits: Iterable[str], resumes: bool, writes: bool) -> Iterator[bool]:
    """Return a context in which to open the shards, True if their content has to be hashed; its end records the hashing.

    A run that does not resume hashes everything; only the process that `writes` records it.
    """
    stamps = stamps_of(manifest, splits)
    recorded = _recorded(folder / SHARDS) if resumes else {}
    hashes = any(recorded.get(file) != stamp for file, stamp in stamps.items())
    yield hashes
    if hashes and writes:
        write_json(folder / SHARDS, stamps)


def stamps_of(manifest: Path, splits: Iterable[str]) -> dict[str, list[Any]]:
    """Return, by file, the sha256 in the manifest and the system's stamp of the file; an absent file has no stamp."""
    facts = read_manifest(manifest)
    stamps: dict[str, list[Any]] = {}
    for shard in (shard for split in splits for shard in facts.split(split, manifest)):
        path = manifest.parent / shard.file
        stamps[str(path)] = [shard.sha256, *_stamp(path)]
        if shard.idx_sha256:
            stamps[str(path.with_suffix(".idx"))] = [shard.idx_sha256, *_stamp(path.with_suffix(".idx"))]
    return stamps


def _stamp(path: Path) -> list[int]:
    try:
        return stamp_of(path)
    except FileNotFoundError:
        return []


def _recorded(path: Path) -> dict[str, Any]:
    """Return the recorded stamps; none where the record is absent or unreadable."""
    try:
        record = read_json(path)
    except RelmError:
        return {}
    return record if isinstance(record, dict) else {}
