"""The files that a run needs to resume elsewhere, and their names in an index.

Push sends files of these names, and pull accepts only these.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from relm.artifact import sidecar_of
from relm.plan.products import list_shared_files, match_run_files
from relm.recipes.plan import Plan
from relm.recipes.run_folder import WEIGHTS


def list_files(plan: Plan) -> dict[str, Path]:
    """Return name -> file of all existing files: downloads, documents, tokenizer, examples, weights, run folder."""
    known = {path for path in list_shared_files(plan) if path.is_file()}
    known |= {*_list_inside(plan.run_folder, match_run_files(plan))}
    return {_name_file(plan, path): path for path in sorted(known)}


def is_of_run(plan: Plan, name: str) -> bool:
    """Return True if a name in an index is in the run's folder."""
    return name.startswith(f"{_name_file(plan, plan.run_folder)}/")


def find_paths(plan: Plan, names: Iterable[str]) -> dict[str, Path]:
    """Return name -> path for the names that push gives to files of this plan."""
    shared, of_run = set(list_shared_files(plan)), match_run_files(plan)
    paths = {name: plan.work / name.removeprefix("work/") for name in names if name.startswith("work/")}
    return {
        name: path
        for name, path in paths.items()
        if (path in shared or _has(plan.run_folder, path, of_run)) and _name_file(plan, path) == name
    }


def _name_file(plan: Plan, path: Path) -> str:
    return f"work/{path.relative_to(plan.work).as_posix()}"


def _has(folder: Path, path: Path, names: re.Pattern[str]) -> bool:
    return path.is_relative_to(folder) and names.fullmatch(path.relative_to(folder).as_posix()) is not None


def _list_inside(folder: Path, names: re.Pattern[str]) -> Iterator[Path]:
    """Yield the files in a folder whose relative paths match a pattern, without hidden ones and links."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and _has(folder, path, names) and path.is_file() and not path.is_symlink():
            yield path


def choose_group(name: str) -> str:
    """Return the group of files that must be pushed together: the folder of a checkpoint, or the file itself.

    >>> choose_group("work/runs/a/0123456789ab/main/checkpoints/step-00000010/state.json")
    'work/runs/a/0123456789ab/main/checkpoints/step-00000010'
    """
    parts = name.split("/")
    return "/".join(parts[: parts.index("checkpoints") + 2]) if "checkpoints" in parts[:-1] else name


def read_recorded_sha256(path: Path) -> str | None:
    """Return the sha256 of a file in its sidecar, its checkpoint's `state.json` or its model's sidecar."""
    for listing in (sidecar_of(path), path.with_name("state.json"), sidecar_of(path.with_name(WEIGHTS))):
        try:
            facts = json.loads(listing.read_text(encoding="utf-8"))
            sha256 = _find_sha256(facts, path.name, is_state=listing.name == "state.json")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(sha256, str):
            return sha256
    return None


def _find_sha256(facts: Any, name: str, is_state: bool) -> Any:
    """Return the sha256 of a file in a `state.json` or a sidecar; raise KeyError without one."""
    if is_state:
        return facts["sha256"][name]
    return facts["sha256"] if facts["file"] == name else facts["files"][name]["sha256"]
