"""Published files whose hashes this machine knows: a file whose size, times and inode are unchanged keeps its hash.

`work/checked/results/NAME.json` has them. It is a cache: without it files are hashed again, and a folder elsewhere has none.
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
    """Return the path of the cache of a folder of results, as a checkout names it; None for any other folder."""
    if folder.is_absolute() or folder.parts[:1] != ("results",) or ".." in folder.parts:
        return None
    return work_folder() / "checked" / folder.with_name(f"{folder.name}.json")


def note_checked(folder: Path, hashes: Mapping[str, str]) -> None:
    """Keep the hashes of a folder's files, which were just read; a work folder that cannot be written is no fault."""
    if (cache := _cache_of(folder)) is None:
        return
    with contextlib.suppress(OSError, RelmError):
        stamps = {name: stamp_of(folder / name) for name in hashes}
        write_json(cache, {name: {"sha256": hashes[name], "stamp": stamps[name]} for name in sorted(hashes)})


class _Hashes:
    """The sha256 of a published folder's files; a known one counts while the file's stamp is the same."""

    def __init__(self, folder: Path, known: Mapping[str, tuple[list[int], str]], largest: int | None) -> None:
        self.folder, self.known, self.largest = folder, known, largest
        self.found: dict[str, str] = {}
        self.count_read = 0

    def sha256(self, path: Path) -> str | None:
        """Return the sha256 of a file; None: it was changed, is larger than `largest`, and has the size that it had."""
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
    """Return name -> stamp and sha256 in the cache of a folder; {} where there is none, or it is damaged."""
    cache = _cache_of(folder)
    try:
        content = read_json(cache) if cache is not None else {}
        return {name: (list(entry["stamp"]), str(entry["sha256"])) for name, entry in content.items()}
    except (RelmError, OSError, KeyError, TypeError, AttributeError):
        return {}


def knows_file(folder: Path, name: str) -> bool:
    """Return whether this machine has seen a file of this name in a published folder."""
    return name in _read_known(folder)


def find_differences(
    folder: Path, *, reads_all: bool = False, largest: int | None = None, keeps: bool = True
) -> tuple[list[FileDifference], int]:
    """Return the differences of a published folder from its recorded hashes, and the count of its files.

    Args:
        reads_all: read every file; otherwise only those whose stamp has changed since the last time.
        largest: of those, skip files of more bytes whose size is as before; None: read all of them.
        keeps: keep the hashes for the next time.
    """
    hashes = _Hashes(folder, {} if reads_all else _read_known(folder), largest)
    differences, count = compare_files(folder, hashes.sha256)
    with contextlib.suppress(OSError):
        if (folder / CHECKSUMS).is_file():
            hashes.sha256(folder / CHECKSUMS)
    if keeps and hashes.count_read:
        note_checked(folder, hashes.found)
    return differences, count
