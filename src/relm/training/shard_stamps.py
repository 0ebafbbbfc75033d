"""The stamps of the shards that a run reads: a resumed run need not hash them again, and a running one detects a write.

A stamp is a file's size, the times of its last changes, its inode and its device. `shards.json`, in the run folder, has the
stamps from just before the files were hashed. A file with the same stamp has not been written since.
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
"""Maps a file to its sha256 in the manifest and the system's stamp, which a missing file lacks."""


@contextmanager
def known_shards(folder: Path, stamps: Stamps, resumes: bool, writes: bool) -> Iterator[bool]:
    """Yield True if the content of shards must be hashed when they are opened, and then record their stamps.

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
    """Raise if a mapped file was written since its stamp was taken: training may have read bytes that were not hashed.

    A file that was replaced or deleted has another inode or none, and the mapping keeps the bytes that were hashed.
    """
    for file, (_, *stamp) in stamps.items():
        now = _stamp(Path(file))
        if now != stamp and now[-2:] == stamp[-2:]:
            raise RelmError(
                f"{file}: another program wrote to it during training, so steps since the last checkpoint may have read wrong "
                "tokens and are not saved. Stop that program, and run the same command to resume from the checkpoint"
            )


def _stamp(path: Path) -> list[int]:
    try:
        return stamp_of(path)
    except FileNotFoundError:
        return []


def _recorded(path: Path) -> dict[str, Any]:
    """Return the recorded stamps; none if the record is missing or unreadable."""
    try:
        record = read_json(path)
    except RelmError:
        return {}
    return record if isinstance(record, dict) else {}
