"""`relm gc`: show what nothing needs any more, and remove it.

A folder is first renamed to `.NAME.removed` in the same place and then emptied: so a folder NAME is always whole, whatever
kills the command. Nothing reads what a kill leaves under the other name, and the next `relm gc` removes it.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from relm.artifact import sync_path
from relm.cleaning.candidates import DATA, RUN, UNFINISHED, Candidate, find_candidates, find_hindrance
from relm.cleaning.needs import Needs
from relm.cleaning.uses import Uses
from relm.errors import RelmError
from relm.formatting import format_bytes, format_duration
from relm.recipes.project import Project
from relm.training.interruption import run_lock
from relm.training.kill_points import kill_point

TITLES = {
    RUN: "runs that no recipe asks for",
    DATA: "documents, examples and tokenizers that no recipe asks for",
    UNFINISHED: "unfinished files",
}
SHOWN_FAULTS = 3


def clean(work: Path, projects: Sequence[Project], minimum_age: float, keep: Sequence[str] = (), removes: bool = False) -> str:
    """Find what nothing needs in a work folder, remove it if `removes`, and return a text about it.

    The recipes and results of all `projects` count. `minimum_age` is in seconds since the last change; `keep` are names of runs
    that stay: NAME, NAME/FINGERPRINT or FINGERPRINT.
    """
    needs = Needs(projects, work)
    found = collect(work, needs, minimum_age, keep, removes)
    return "\n".join([*_lines(found), *_notes(work, needs, found, removes)])


def collect(work: Path, needs: Needs, minimum_age: float, keep: Sequence[str], removes: bool) -> list[Candidate]:
    """Find what nothing needs, and remove it if `removes`; with faults in the needs all data stay."""
    uses, why = Uses(), "it may be needed, see below"
    found = find_candidates(work, needs, uses, minimum_age, keep)
    found = [replace(each, kept=why) if needs.faults and each.kind == DATA and each.kept is None else each for each in found]
    return [_remove(each, work, needs, uses) if removes and each.kept is None else each for each in found]


def _remove(candidate: Candidate, work: Path, needs: Needs, uses: Uses) -> Candidate:
    """Remove a candidate, unless something needs it by now; then say so in the result."""
    needs.require_unchanged()
    hindrance = find_hindrance(candidate, work, uses) if candidate.path.exists() else "another command removed it"
    if hindrance is not None:
        return replace(candidate, kept=hindrance)
    try:
        with contextlib.ExitStack() as stack:  # so that no trainer starts there meanwhile
            for lock in candidate.run.folder.glob("*/lock") if candidate.run else ():
                stack.enter_context(run_lock(lock))
            _remove_path(candidate.path)
    except FileNotFoundError:
        return replace(candidate, kept="another command removed it")
    except OSError as error:
        raise RelmError(
            f"{error.filename or candidate.path}: cannot be removed: {error.strerror}; correct its permissions and run it again"
        ) from error
    if candidate.kind == RUN:
        with contextlib.suppress(OSError):  # the recipe has other runs
            candidate.path.parent.rmdir()
    return candidate


def _remove_path(path: Path) -> None:
    """Remove a file, or a folder in two steps: rename it, then empty it."""
    if not path.is_dir():
        path.unlink()
        return
    moved = path
    if not path.name.endswith(".removed"):
        moved = path.with_name(f".{path.name.removeprefix('.')}.removed")
        if moved.exists():
            shutil.rmtree(moved)
        path.rename(moved)
        sync_path(path.parent)
        kill_point("gc-renamed")
    for inside in sorted(moved.iterdir()):
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        else:
            inside.unlink()
        kill_point("gc-entry")
    moved.rmdir()


def _lines(found: Sequence[Candidate]) -> Iterator[str]:
    """Yield the candidates by kind, each with its size and the reason, and last those that are kept."""
    titled = [(TITLES[each.kind] if each.kept is None else "kept", each) for each in found]
    for title, group in groupby(sorted(titled, key=lambda pair: pair[0] == "kept"), lambda pair: pair[0]):
        yield f"{title}:"
        for _, each in group:
            age = format_duration(max(0.0, time.time() - each.disk.changed))
            yield f"  {format_bytes(each.disk.freed):>8}  {each.path}"
            yield f"            {each.reason}{f'; last changed {age} ago' if each.kept is None else f', but {each.kept}'}"


def _notes(work: Path, needs: Needs, found: Sequence[Candidate], removes: bool) -> Iterator[str]:
    """Yield the sum, what to do next, and the faults."""
    gone = [each for each in found if each.kept is None]
    size = format_bytes(sum(each.disk.freed for each in gone))
    count = f"{len(gone)} file{'s' if len(gone) != 1 else ''} or folder{'s' if len(gone) != 1 else ''}"
    if not gone:
        yield f"nothing to remove in {work}"
    elif removes:
        yield f"removed {count} of {size}"
    else:
        yield f"would remove {count} of {size}; nothing was changed, --yes removes them"
    if needs.faults:
        yield "Documents, examples and tokenizers stay until these are corrected:"
        yield from (f"  {fault}" for fault in needs.faults[:SHOWN_FAULTS])
    if len(needs.faults) > SHOWN_FAULTS:
        yield f"  and {len(needs.faults) - SHOWN_FAULTS} more"
    if not work.resolve().is_relative_to(Path.cwd().resolve()):
        yield (
            f"{work} is outside this checkout: if another checkout shares it, name that with --also, or what only its recipes "
            "need counts as not needed."
        )
