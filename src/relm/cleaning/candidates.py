"""Files and folders that could be removed from the work folder, each with the reason, and with what keeps it after all."""

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relm.cleaning.needs import Needs
from relm.cleaning.uses import Uses
from relm.errors import RelmError
from relm.plan.products import PRODUCTS
from relm.recipes.identity import KEY
from relm.recipes.run_name import RunName
from relm.reporting.live_steps import is_locked
from relm.reporting.stored_runs import StoredRun, find_stored_runs

RUN, DATA, UNFINISHED, LOCK = "run", "data", "unfinished", "lock"
NOT_CHOSEN = "not chosen by --only"
KINDS = (RUN, DATA, UNFINISHED, LOCK)
_KEYED_NAME = re.compile(rf".+-{KEY.pattern}")
# Names under which files and folders are written, or moved before they are removed.
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<state>partial|part|part\.json|before|removed)|\.import\..+")
# Scratch folders right in the work folder: of `relm reproduce` and `relm pull`.
_SCRATCH = re.compile(r"replay-.+|pulled")
# A cache of hashes that a process was about to rename; its number stands at the end.
_OWN_CACHE = re.compile(r".+\.json\.(?P<pid>\d+)")


@dataclass(frozen=True)
class Candidate:
    """A file or folder of the work folder that nothing seems to need."""

    path: Path
    kind: str
    reason: str
    size: int
    """Bytes that its removal frees: files that have a name elsewhere too do not count."""
    changed: float
    """Time of its last change, in seconds since the epoch."""
    run: StoredRun | None = None
    kept: str | None = None
    """The reason why it stays after all; None: it is to be removed."""


@dataclass(frozen=True)
class Exceptions:
    """Files that a user excepts from removal."""

    minimum_age: float
    """Seconds since the last change."""
    keep: Sequence[str] = ()
    """Names of runs, NAME or NAME/FINGERPRINT."""
    kinds: Sequence[str] = KINDS


def find_candidates(work: Path, needs: Needs, uses: Uses, choice: Exceptions) -> list[Candidate]:
    """Return all candidates: runs, then the data that none of the remaining runs needs, unfinished files, and locks.

    Raises:
        RelmError: a run that is to be kept does not exist.
    """
    _require_runs(work, choice.keep)
    runs = [_find_reason_to_keep(each, work, uses, choice) for each in _old_runs(work, needs)]
    for run in runs:
        if run.kept is not None and run.run is not None:
            needs.add_run(run.run)
    found = [*runs, *(_find_reason_to_keep(each, work, uses, choice) for each in _old_data(work, needs))]
    removed = {each.path for each in found if each.kept is None}
    rest = [*_unfinished(work, needs, removed), *_locks(work, removed)]
    return [*found, *(_find_reason_to_keep(each, work, uses, choice) for each in rest)]


def _require_runs(work: Path, names: Sequence[str]) -> None:
    runs = find_stored_runs(work)
    for name in names:
        if not any(find_named(run, [name]) for run in runs):
            known = ", ".join(dict.fromkeys(run.name for run in runs)) or "none"
            raise RelmError(f"--keep {name}: {work}/runs has no such run; it has {known}; `relm runs` lists them")


def _old_runs(work: Path, needs: Needs) -> Iterator[Candidate]:
    for run in find_stored_runs(work):
        if needs.find_reason(run) is None:
            yield _measure(Candidate(run.folder, RUN, _describe_old(run, needs), 0, 0, run))


def _describe_old(run: StoredRun, needs: Needs) -> str:
    """Return a phrase on why no recipe asks for a run."""
    fingerprints = needs.fingerprints(run.name)
    return f"its recipe asks for {', '.join(fingerprints)} now" if fingerprints else "no recipe of this name is left"


def _old_data(work: Path, needs: Needs) -> Iterator[Candidate]:
    for kind in dict.fromkeys(product.path.partition("/")[0] for product in PRODUCTS.values() if product.remade):
        for folder in sorted(_entries(work / kind)):
            if _KEYED_NAME.fullmatch(folder.name) and not needs.has(folder):
                yield _measure(Candidate(folder, DATA, f"no recipe, result or kept run asks for these {kind}", 0, 0))


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _unfinished(work: Path, needs: Needs, removed: set[Path]) -> Iterator[Candidate]:
    """Yield files and folders that a killed process left; those in folders that are removed anyway are left out."""
    for inside, folders, files in os.walk(work):
        folder = Path(inside)
        for name in sorted([*folders, *files]):
            reason = _describe_unfinished(folder / name, work, needs)
            if reason is not None:
                yield _measure(Candidate(folder / name, UNFINISHED, reason, 0, 0))
            if name in folders and (reason is not None or folder / name in removed):
                folders.remove(name)


def _describe_unfinished(path: Path, work: Path, needs: Needs) -> str | None:
    """Return a phrase on what a killed process left; None: it left nothing, or something that is wanted still."""
    if path.parent == work and _SCRATCH.fullmatch(path.name):
        return "scratch files of a killed command"
    if path.parent.is_relative_to(work / "folders") and (cache := _OWN_CACHE.fullmatch(path.name)):
        return None if os.path.exists(f"/proc/{cache['pid']}") else "a killed process was about to rename it"
    found = _UNFINISHED.fullmatch(path.name)
    if found is None:
        return None
    whole = path.with_name(found["name"] or "")
    if found["state"] == "before":  # of a folder that was being replaced it may be the only copy
        return "the replaced version of a folder" if whole.exists() else None
    if found["state"] in ("part", "part.json"):  # the next download resumes there
        return None if needs.has(whole) and not whole.exists() else "a part of a download that no recipe asks for"
    return "a removal that was killed" if found["state"] == "removed" else "a killed process was writing it"


def _locks(work: Path, removed: set[Path]) -> Iterator[Candidate]:
    for run in find_stored_runs(work):
        for lock in run.locks if run.folder not in removed else ():
            if not is_locked(lock):
                yield _measure(Candidate(lock, LOCK, "no process holds it", 0, 0))


# --- what keeps a candidate --------------------------------------------------------------------------------------------------


def _find_reason_to_keep(candidate: Candidate, work: Path, uses: Uses, choice: Exceptions) -> Candidate:
    """Return the candidate with the first reason to keep it, if there is one."""
    age = time.time() - candidate.changed
    named = None if candidate.run is None else find_named(candidate.run, choice.keep)
    kept = None
    if candidate.kind not in choice.kinds:
        kept = NOT_CHOSEN
    elif named is not None:
        kept = f"--keep {named}"
    elif age < choice.minimum_age:
        kept = "it changed too recently"
    else:
        kept = find_hindrance(candidate, work, uses)
    return replace(candidate, kept=kept)


def find_named(run: StoredRun, names: Sequence[str]) -> str | None:
    """Return the name by which a run is kept: its own, that of its recipe, or one with its fingerprint."""
    own = {run.name, str(RunName.parse(run.name)._replace(machine=None)), f"{run.name}/{run.fingerprint}", run.fingerprint}
    return next((name for name in names if name in own), None)


def find_hindrance(candidate: Candidate, work: Path, uses: Uses) -> str | None:
    """Return the reason why a path must not be removed now: it is outside the work folder, locked, or in use; else None."""
    path = candidate.path
    if path.is_symlink():
        return "a symbolic link"
    if path.parent.resolve() != work.resolve() / path.parent.relative_to(work):
        return "a symbolic link leads there, out of the work folder"
    if _crosses_file_systems(path):
        return "another file system is mounted in it"
    if candidate.run is not None and candidate.run.locked_phase is not None:
        return "a trainer holds its lock"
    return uses.find(path)


def _crosses_file_systems(path: Path) -> bool:
    device = path.parent.stat().st_dev
    return any(os.lstat(inside).st_dev != device for inside, _, _ in os.walk(path)) or os.path.ismount(path)


def _measure(candidate: Candidate) -> Candidate:
    """Return a candidate with the bytes that its removal frees, and the time of its last change."""
    changed = os.lstat(candidate.path).st_mtime
    links: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], int] = {}
    paths = [candidate.path, *(Path(inside, name) for inside, _, files in os.walk(candidate.path) for name in files)]
    for path in paths:
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            key = status.st_dev, status.st_ino
            links[key] = links.get(key, status.st_nlink) - 1
            sizes[key] = status.st_blocks * 512
            changed = max(changed, status.st_mtime)
    return replace(candidate, size=sum(sizes[key] for key, left in links.items() if not left), changed=changed)
