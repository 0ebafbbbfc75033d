"""The stamps of the shards that a run reads: a resumed run need not hash them again, and a running one sees a write to them.

A stamp is a file's size, the times of its last changes, its inode and its device. `shards.json`, in the run folder, has the
stamps as they were just before the files were hashed. A file for which all of these are the same has not been written since.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relm.artifact import read_json, stamp_of, write_json
from relm.errors import RelmError
from relm.examples.manifest import read_manifest
from relm.recipes.run_folder import SHARDS

Stamps = Mapping[str, list[Any]]
"""By file: the sha256 in the manifest, then the system's stamp, which an absent file does not have."""


@contextmanager
def known_shards(folder: Path, stamps: Stamps, resumes: bool, writes: bool) -> Iterator[bool]:
    """Return a context in which to open the shards, True if their content has to be hashed; its end records the hashing.

    A run that does not resume hashes everything; only the process that `writes` records it.
    """
    recorded = _recorded(folder / SHARDS) if resumes else {}
    hashes = any(recorded.get(file) != stamp for file, stamp in stamps.items())
    yield hashes
    if hashes and writes:
        write_json(folder / SHARDS, stamps)


def stamps_of(manifest: Path, splits: Iterable[str]) -> dict[str, list[Any]]:
    """Return the stamps of the files of these splits."""
    facts = read_manifest(manifest)
    stamps: dict[str, list[Any]] = {}
    for shard in (shard for split in splits for shard in facts.split(split, manifest)):
        path = manifest.parent / shard.file
        stamps[str(path)] = [shard.sha256, *_stamp(path)]
        if shard.idx_sha256:
            stamps[str(path.with_suffix(".idx"))] = [shard.idx_sha256, *_stamp(path.with_suffix(".idx"))]
    return stamps


def require_unwritten(stamps: Stamps) -> None:
    """Raise if a mapped file was written since its stamp was taken: training may have read what no hash has seen.

    A file that was replaced or deleted has another inode or none, and the mapping still has the bytes that were hashed.
    """
    for file, (_, *stamp) in stamps.items():
        now = _stamp(Path(file))
        if now != stamp and now[-2:] == stamp[-2:]:
            raise RelmError(
                f"{file}: written while training read it, expected the bytes that were hashed. Steps since the last checkpoint "
                "may have read other tokens and are not saved. Stop the program that wrote to it, and give the same command "
                "to resume from that checkpoint"
            )


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
