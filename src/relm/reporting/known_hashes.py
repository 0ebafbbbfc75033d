"""A cache of the hashes of published files: a file whose size, times and inode are unchanged is not hashed again.

It is kept in `work/checked/results/NAME.json`, only for folders in `results/`.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from relm.artifact import read_json, sha256_of, stamp_of, write_json
from relm.errors import RelmError
from relm.plan.published_files import FileDifference, compare_files
from relm.recipes.identity import work_folder
from relm.recipes.run_folder import CHECKSUMS


def _cache_of(folder: Path) -> Path | None:
    """Return the cache of a folder, or None if the folder is outside `results/`."""
    if folder.is_absolute() or folder.parts[:1] != ("results",) or ".." in folder.parts:
        return None
    return work_folder() / "checked" / folder.with_name(f"{folder.name}.json")


def note_checked(folder: Path, hashes: Mapping[str, str]) -> None:
    """Cache the hashes of a folder's files, which were just read; do nothing if the work folder cannot be written."""
    if (cache := _cache_of(folder)) is None:
        return
    with contextlib.suppress(OSError, RelmError):
        stamps = {name: stamp_of(folder / name) for name in hashes}
        write_json(cache, {name: {"sha256": hashes[name], "stamp": stamps[name]} for name in sorted(hashes)})


class _Hashes:
    """The sha256 of a published folder's files; a cached one is used while the file's stamp is the same."""

    def __init__(self, folder: Path, known: Mapping[str, tuple[list[int], str]], largest: int | None) -> None:
        self.folder, self.known, self.largest = folder, known, largest
        self.found: dict[str, str] = {}
        self.count_read = 0

    def sha256(self, path: Path) -> str | None:
        """Return the sha256 of a file; None for a file over `largest` bytes that was touched but has its old size."""
        name, stamp = path.relative_to(self.folder).as_posix(), stamp_of(path)
        before, sha256 = self.known.get(name, (stamp, None))
        if sha256 is None or before != stamp:
            if self.largest is not None and stamp[0] > self.largest and before[0] == stamp[0]:
                return None
            sha256 = sha256_of(path)
            self.count_read += 1
        self.found[name] = sha256
        return sha256


def _read_known(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Return name -> stamp and sha256 in the cache of a folder; {} if it is absent or damaged."""
    cache = _cache_of(folder)
    try:
        content = read_json(cache) if cache is not None else {}
        return {name: (list(entry["stamp"]), str(entry["sha256"])) for name, entry in content.items()}
    except (RelmError, OSError, KeyError, TypeError, AttributeError):
        return {}


def knows_file(folder: Path, name: str) -> bool:
    """Return True if the cache lists a file of a published folder."""
    return name in _read_known(folder)


def find_differences(
    folder: Path, *, reads_all: bool = False, largest: int | None = None, keeps: bool = True
) -> tuple[list[FileDifference], int]:
    """Compare a published folder with its recorded hashes; return the differences and the count of its files.

    Args:
        reads_all: hash every file, not only those whose stamp has changed.
        largest: skip a touched file of more bytes if its size is unchanged; None: skip none.
        keeps: update the cache.
    """
    hashes = _Hashes(folder, {} if reads_all else _read_known(folder), largest)
    differences, count = compare_files(folder, hashes.sha256)
    with contextlib.suppress(OSError):
        if (folder / CHECKSUMS).is_file():
            hashes.sha256(folder / CHECKSUMS)
    if keeps and hashes.count_read:
        note_checked(folder, hashes.found)
    return differences, count
