"""Find files and folders to remove from the work folder, each with the reason, or with what keeps it."""

import os
import re
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
from relm.reporting.run_record import DiskUse, RunRecord, measure

RUN, DATA, UNFINISHED = "run", "data", "unfinished"
_KEYED_NAME = re.compile(rf".+-{KEY.pattern}")
# Names of files and folders while they are written, or before they are removed.
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<state>partial|part|part\.json|before|removed)|\.import\..+")
# Scratch folders of `relm reproduce`, directly in the work folder.
_SCRATCH = re.compile(r"replay-.+")


@dataclass(frozen=True)
class Candidate:
    """A file or folder of the work folder that nothing seems to need."""

    path: Path
    kind: str
    reason: str
    disk: DiskUse
    run: RunRecord | None = None
    kept: str | None = None
    """Why it stays after all; None: it is to be removed."""


def find_candidates(work: Path, needs: Needs, uses: Uses, minimum_age: float, keep: Sequence[str]) -> list[Candidate]:
    """Return all candidates: runs, then data that no remaining run needs, then unfinished files."""
    for name in keep:
        if not any(_find_named(run, [name]) for run in needs.runs):
            known = ", ".join(dict.fromkeys(run.name for run in needs.runs)) or "none"
            raise RelmError(f"--keep {name}: unknown run; {work}/runs has {known}. `relm runs` lists them")

    def judge(found: Candidate) -> Candidate:
        named = None if found.run is None else _find_named(found.run, keep)
        if named is not None:
            return replace(found, kept=f"--keep {named}")
        is_recent = time.time() - found.disk.changed < minimum_age
        return replace(found, kept="it changed too recently" if is_recent else find_hindrance(found, work, uses))

    runs = [judge(each) for each in _old_runs(needs)]
    for each in runs:
        if each.kept is not None and each.run is not None:
            needs.add_run(each.run)
    found = [*runs, *map(judge, _old_data(work, needs))]
    removed = {each.path for each in found if each.kept is None}
    return [*found, *map(judge, _unfinished(work, needs, removed))]


def _find_named(run: RunRecord, names: Sequence[str]) -> str | None:
    """Return the name in `names` of a run, of its recipe or with its fingerprint; None: no such name."""
    own = {run.name, str(RunName.parse(run.name)._replace(machine=None)), f"{run.name}/{run.fingerprint}", run.fingerprint}
    return next((name for name in names if name in own), None)


def _old_runs(needs: Needs) -> Iterator[Candidate]:
    for run in needs.runs:
        if not needs.has_run(run):
            now = ", ".join(dict.fromkeys(plan.fingerprint for plan in run.requested.plans))
            reason = f"its recipe asks for {now} now" if now else "no recipe of this name is left"
            yield Candidate(run.folder, RUN, reason, run.disk, run)


def _old_data(work: Path, needs: Needs) -> Iterator[Candidate]:
    for kind in dict.fromkeys(product.path.partition("/")[0] for product in PRODUCTS.values() if product.remade):
        for folder in sorted((work / kind).iterdir()) if (work / kind).is_dir() else ():
            if _KEYED_NAME.fullmatch(folder.name) and not needs.has(folder):
                yield Candidate(folder, DATA, f"no recipe, result or kept run asks for these {kind}", measure(folder))


def _unfinished(work: Path, needs: Needs, removed: set[Path]) -> Iterator[Candidate]:
    """Yield files and folders that a killed process left, except in folders that are removed anyway."""
    for inside, folders, files in os.walk(work):
        folder = Path(inside)
        for name in sorted([*folders, *files]):
            reason = _describe_unfinished(folder / name, work, needs)
            if reason is not None:
                yield Candidate(folder / name, UNFINISHED, reason, measure(folder / name))
            if name in folders and (reason is not None or folder / name in removed):
                folders.remove(name)


def _describe_unfinished(path: Path, work: Path, needs: Needs) -> str | None:
    """Return a phrase about what a killed process left; None: nothing, or something still wanted."""
    if path.parent == work and _SCRATCH.fullmatch(path.name):
        return "scratch files of a killed command"
    found = _UNFINISHED.fullmatch(path.name)
    if found is None:
        return None
    whole = path.with_name(found["name"] or "")
    if found["state"] == "before":  # perhaps the only copy of a folder that was being replaced
        return "the replaced version of a folder" if whole.exists() else None
    if found["state"] in ("part", "part.json"):  # the next download resumes there
        return None if needs.has(whole) and not whole.exists() else "a part of a download that no recipe asks for"
    return "a removal that was killed" if found["state"] == "removed" else "a killed process was writing it"


def find_hindrance(candidate: Candidate, work: Path, uses: Uses) -> str | None:
    """Return why a path must not be removed now: it is outside the work folder, locked or in use; None: it may be."""
    path = candidate.path
    if path.is_symlink():
        return "a symbolic link"
    if path.parent.resolve() != work.resolve() / path.parent.relative_to(work):
        return "a symbolic link leads there, out of the work folder"
    device = path.parent.stat().st_dev
    if any(os.lstat(inside).st_dev != device for inside, _, _ in os.walk(path)) or os.path.ismount(path):
        return "another file system is mounted in it"
    if candidate.run is not None and candidate.run.locked_phase is not None:
        return "a trainer holds its lock"
    return uses.find(path)
