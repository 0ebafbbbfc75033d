"""`relm gc`: show what nothing needs any more, and remove it.

A folder is first renamed, to `.NAME.removed` beside it, and then emptied: whatever kills the command, a folder under its own
name is whole. What a kill leaves under the other name nothing reads, and the next `relm gc` removes it.
"""

import contextlib
import datetime
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from relm.artifact import sync_path
from relm.cleaning.candidates import (
    DATA,
    LOCK,
    NOT_CHOSEN,
    RUN,
    UNFINISHED,
    Candidate,
    Exceptions,
    find_candidates,
    find_hindrance,
)
from relm.cleaning.needs import Needs, describe_faults
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
    LOCK: "abandoned locks",
}


def clean(
    work: Path,
    projects: Mapping[Path, Project],
    choice: Exceptions,
    removes: bool = False,
    as_json: bool = False,
) -> str:
    """Find what nothing needs in a work folder, remove it if wanted, and return a text on it.

    Args:
        projects: folder -> project, of each checkout whose recipes count.

    Raises:
        RelmError: a recipe was edited meanwhile, or a file cannot be removed.
    """
    needs, uses = Needs(projects, work), Uses()
    found = _keep_unknown(find_candidates(work, needs, uses, choice), needs)
    if removes:
        found = [_remove(each, work, needs, uses) if each.kept is None else each for each in found]
    if as_json:
        return json.dumps([_as_json(each, removes) for each in found], indent=1, ensure_ascii=False)
    return "\n".join([*_lines(found), *_notes(work, needs, found, removes)])


def _keep_unknown(found: Sequence[Candidate], needs: Needs) -> list[Candidate]:
    """Keep all data where it is not known which of them are needed."""
    why = "not known whether it is needed, see below"
    return [replace(each, kept=why) if needs.faults and each.kind == DATA and each.kept is None else each for each in found]


# --- removal -----------------------------------------------------------------------------------------------------------------


def _remove(candidate: Candidate, work: Path, needs: Needs, uses: Uses) -> Candidate:
    """Remove a candidate unless something has come to need it since it was found; it says so then."""
    needs.require_unchanged()
    hindrance = find_hindrance(candidate, work, uses) if candidate.path.exists() else "another command removed it"
    if hindrance is not None:
        return replace(candidate, kept=hindrance)
    try:
        with _locks(candidate):
            _remove_path(candidate.path)
    except FileNotFoundError:
        return replace(candidate, kept="another command removed it")
    except OSError as error:
        raise RelmError(
            f"{error.filename or candidate.path}: cannot be removed: {error.strerror}; correct its permissions and give the "
            "command again"
        ) from error
    if candidate.kind == RUN:
        with contextlib.suppress(OSError):  # other runs of the recipe are there still
            candidate.path.parent.rmdir()
    return candidate


@contextlib.contextmanager
def _locks(candidate: Candidate) -> Iterator[None]:
    """Hold the locks of a run's phases, or the lock that is removed, so that no trainer starts there meanwhile."""
    locks = [candidate.path] if candidate.kind == LOCK else candidate.run.locks if candidate.run else []
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(run_lock(lock))
        yield


def _remove_path(path: Path) -> None:
    """Remove a file, or a folder in two steps: it is renamed, and then emptied."""
    if not path.is_dir():
        path.unlink()  # a link is one of its own, whatever it leads to
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


# --- text --------------------------------------------------------------------------------------------------------------------


def _lines(found: Sequence[Candidate]) -> Iterator[str]:
    """Yield the candidates by kind, each with its size, its age and the reason."""
    gone = [each for each in found if each.kept is None]
    for kind, group in groupby(gone, lambda each: each.kind):
        yield f"{TITLES[kind]}:"
        for each in group:
            age = format_duration(max(0.0, time.time() - each.changed))
            yield f"  {format_bytes(each.size):>8}  {each.path}"
            yield f"            {each.reason}; last changed {age} ago"
    kept = [each for each in found if each.kept is not None and each.kept != NOT_CHOSEN and each.kind != LOCK]
    if kept:
        yield "kept:"
    for each in kept:
        yield f"  {format_bytes(each.size):>8}  {each.path}"
        yield f"            {each.reason}, but {each.kept}"


def _notes(work: Path, needs: Needs, found: Sequence[Candidate], removes: bool) -> Iterator[str]:
    """Yield the sum, the way on, and what is not known."""
    gone = [each for each in found if each.kept is None]
    size = format_bytes(sum(each.size for each in gone))
    count = f"{len(gone)} file{'s' if len(gone) != 1 else ''} or folder{'s' if len(gone) != 1 else ''}"
    if not gone:
        yield f"nothing to remove in {work}"
    elif removes:
        yield f"removed {count} of {size}"
    else:
        yield f"would remove {count} of {size}; nothing was changed, --yes removes them"
    if needs.faults:
        yield "Documents, examples and tokenizers stay until these are put right:"
        yield from describe_faults(needs.faults)
    if not work.resolve().is_relative_to(Path.cwd().resolve()):
        yield (
            f"{work} lies outside this checkout: if another one shares it, name that with --also, or what only its recipes "
            "need counts as not needed."
        )


def _as_json(candidate: Candidate, removes: bool) -> dict[str, object]:
    changed = datetime.datetime.fromtimestamp(candidate.changed, datetime.UTC).isoformat(timespec="seconds")
    return {
        "path": str(candidate.path),
        "kind": candidate.kind,
        "reason": candidate.reason,
        "kept": candidate.kept,
        "removed": removes and candidate.kept is None,
        "bytes": candidate.size,
        "changed": changed.replace("+00:00", "Z"),
    }
