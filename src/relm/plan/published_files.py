"""The recorded sha256 of each file of a published folder, and the files that differ. Imports no torch.

`SHA256SUMS` lists every other file, `ro-crate-metadata.json` every file but these two: whichever byte of a folder changes, a
file differs from its hash, or the two lists differ. Only the folder is read, so a copy is checked on any machine.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.plan.products import PRODUCTS, find_maker
from relm.recipes.run_folder import CHECKSUMS, METADATA

DAMAGED, MISSING, UNEXPECTED = "damaged", "missing", "unexpected"
LISTS = (CHECKSUMS, METADATA)
_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00-\x1f]+)")


class FileDifference(NamedTuple):
    """A file of a published folder that has changed since."""

    name: str
    state: str
    """DAMAGED, MISSING or UNEXPECTED."""
    detail: str
    """The comparison that shows it."""

    def __str__(self) -> str:
        """Return the difference as a phrase."""
        maker = "" if self.state == UNEXPECTED else f"; made by {describe_maker(self.name)}"
        return f"{self.name}: {self.state}: {self.detail}{maker}"


def describe_maker(name: str) -> str:
    """Return the step that makes a published file, with its phase where the name has one.

    >>> describe_maker("train.long.jsonl"), describe_maker("verify.json"), describe_maker("notes.txt")
    ('pretrain, phase long', 'verify', 'no step of relm')
    """
    step, phase = find_maker(name)
    return f"{step}, phase {phase}" if phase else step or "no step of relm"


def first_differing_step(differences: list[FileDifference]) -> str:
    """Return the first step in the data flow that made one of the differing files; empty: none of them."""
    steps = {find_maker(found.name)[0] for found in differences if found.state != UNEXPECTED}
    return next((product.maker for product in PRODUCTS.values() if product.maker in steps), "")


def format_checksums(hashes: Mapping[str, str]) -> str:
    """Return name -> sha256 in the format of `sha256sum`, which `sha256sum --check` reads."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))


def read_checksums(folder: Path) -> dict[str, str] | None:
    """Return name -> sha256 of `SHA256SUMS`; None for a folder of an earlier version, which wrote none."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return None
    text = path.read_bytes().decode(errors="replace")
    lines = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    hashes = {line[2]: line[1] for line in lines if line}
    if not hashes or text != format_checksums(hashes):  # a repeated name, another order, an unknown line
        raise RelmError(f"{path}: not the list of hashes that `relm publish` writes; publish the result again")
    return _require_inside(path, hashes)


def read_crate_hashes(folder: Path) -> dict[str, str] | None:
    """Return name -> sha256 of the files that `ro-crate-metadata.json` lists; None without that file."""
    path = folder / METADATA
    if not path.is_file():
        return None
    try:
        files = [entity for entity in read_json(path)["@graph"] if entity["@type"] == "File"]
        hashes = {str(entity["name"]): str(entity["sha256"]) for entity in files}
    except (KeyError, TypeError) as error:
        raise RelmError(f"{path}: not what `report` writes ({type(error).__name__}: {error}); publish it again") from None
    return _require_inside(path, hashes)


def _require_inside(path: Path, hashes: dict[str, str]) -> dict[str, str]:
    if strange := [name for name in hashes if name.startswith("/") or ".." in PurePosixPath(name).parts]:
        raise RelmError(f"{path}: lists {strange[0]!r}, which is outside its folder; publish the result again")
    return hashes


def recorded_sha256(folder: Path, name: str) -> str | None:
    """Return the recorded sha256 of one published file; None: the lists do not have it, or cannot be read."""
    for read in (read_checksums, read_crate_hashes):
        try:
            if sha256 := (read(folder) or {}).get(name):
                return sha256
        except RelmError:
            continue
    return None


def list_names(folder: Path) -> list[str]:
    """Return the names of the files of a published folder, without those of Snakemake, git or a hub."""
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir())
    return [name for name in names if not any(part.startswith(".") for part in PurePosixPath(name).parts)]


def compare_files(folder: Path, sha256: Callable[[Path], str | None] = sha256_of) -> tuple[list[FileDifference], int]:
    """Return the differences of a published folder from its hashes, and the count of files; skip those with `sha256` None."""
    if not folder.is_dir():
        raise RelmError(f"{folder}: no such folder; `snakemake results/NAME` publishes one, or give a copy of such a folder")
    crate, unread = _read(folder, METADATA, read_crate_hashes)
    sums, unread_sums = _read(folder, CHECKSUMS, read_checksums)
    if crate is sums is None and not unread and not unread_sums:
        raise RelmError(
            f"{folder}: has no {CHECKSUMS} and no {METADATA}, which list its files; give a folder that relm published"
        )
    found = {one.name: one for one in [*unread, *unread_sums]}
    for name, expected in ((crate or {}) if sums is None else sums).items():
        one = _compare(folder / name, name, expected, (crate or {}).get(name, expected), sha256)
        if one is not None:
            found.setdefault(one.name, one)
    if METADATA not in found and CHECKSUMS not in found:
        found |= {one.name: one for one in _compare_lists(crate, sums) if one.name not in found}
    known = {*(crate or {}), *(sums or {}), *found, CHECKSUMS, METADATA}
    names = list_names(folder)
    found |= {name: FileDifference(name, UNEXPECTED, "relm did not publish it") for name in names if name not in known}
    return list(found.values()), len(known.intersection(names))


def find_changed(folder: Path, names: Collection[str]) -> list[FileDifference]:
    """Return the differences of some files of a published folder, and of its lists of hashes; read no other file."""
    differences, _ = compare_files(
        folder, lambda path: sha256_of(path) if path.relative_to(folder).as_posix() in {*names, METADATA} else None
    )
    # An earlier version wrote only the crate.
    return [one for one in differences if one.name in names or (one.name in LISTS and one[:2] != (CHECKSUMS, MISSING))]


def _read(
    folder: Path, name: str, read: Callable[[Path], dict[str, str] | None]
) -> tuple[dict[str, str] | None, list[FileDifference]]:
    """Return a list of hashes, None if it is absent or unreadable, and the difference in the second case."""
    try:
        return read(folder), []
    except RelmError as error:
        return None, [FileDifference(name, DAMAGED, str(error).removeprefix(f"{folder / name}: "))]
    except OSError as error:
        return None, [FileDifference(name, DAMAGED, f"cannot be read: {error.strerror}")]


def _compare(
    path: Path, name: str, expected: str, in_crate: str, sha256: Callable[[Path], str | None]
) -> FileDifference | None:
    """Return how one file differs from its recorded hash; if the hash in the crate fits, the list is wrong."""
    if not path.is_file():
        return FileDifference(name, MISSING, f"was published{_describe_other_kind(path)}")
    try:
        found = sha256(path)
    except OSError as error:
        return FileDifference(name, DAMAGED, f"cannot be read: {error.strerror}")
    if found in (None, expected):
        return None
    if found == in_crate:
        return FileDifference(CHECKSUMS, DAMAGED, f"its sha256 of {name} differs from the file's, which {METADATA} confirms")
    if name == METADATA:  # no third list shows which of the two was changed
        return FileDifference(name, DAMAGED, f"sha256 is {found}, {CHECKSUMS} has {expected}")
    return FileDifference(name, DAMAGED, f"sha256 is {found}, published was {expected}")


def _describe_other_kind(path: Path) -> str:
    """Return a phrase on what is at a path in place of a file; empty for nothing."""
    if path.is_symlink() and not path.exists():
        return f", and is a link to {os.readlink(path)}, which does not exist"
    if path.is_dir():
        return ", and is a folder"
    return ", and is a special file" if os.path.lexists(path) else ""


def _compare_lists(crate: Mapping[str, str] | None, sums: Mapping[str, str] | None) -> Iterator[FileDifference]:
    """Yield the differences of `SHA256SUMS` from the undamaged crate; none without a crate.

    A file that was changed together with its line in one list still differs from the other.
    """
    if crate is None:
        return
    if sums is None:
        yield FileDifference(CHECKSUMS, MISSING, f"without it {METADATA} is not checked; an earlier version wrote none")
        return
    if unlike := sorted({*crate, METADATA} ^ sums.keys()):
        yield FileDifference(CHECKSUMS, DAMAGED, f"only one of it and {METADATA} lists {unlike[0]}")
    for name in sorted(crate.keys() & sums.keys()):
        if sums[name] != crate[name]:
            detail = f"{CHECKSUMS} has its sha256 as {sums[name]}, {METADATA} as {crate[name]}"
            yield FileDifference(name, DAMAGED, detail)
