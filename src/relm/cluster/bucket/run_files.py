"""The files that a run needs to resume elsewhere, under their names in an index.

Push searches for files of these names, and pull accepts no others: both use this module.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relm.artifact import sidecar_of
from relm.errors import RelmError
from relm.plan.products import list_shared_files, match_published_files, match_run_files
from relm.plan.published_files import recorded_sha256
from relm.recipes import identity
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKSUMS, WEIGHTS

_ANY = re.compile(".*", re.DOTALL)
# Folders of a checkout with code that is run, and those of runs: none of them counts as the user's own.
NOT_OWN = ("work", "results", "src", "recipes", "profiles", "containers", "envs", ".ci")


def list_files(plan: Plan) -> dict[str, Path]:
    """Return name -> file of all existing files: downloads, documents, tokenizer, examples, weights, run folder, results."""
    known = {path for path in list_shared_files(plan) if path.is_file()}
    known |= {path for folder, names in _folders(plan).items() for path in _list_inside(folder, names)}
    # Those in the work folder come first: their sidecars have the hashes, which their published links lack.
    ordered = sorted(known, key=lambda path: (not path.is_relative_to(plan.work), path))
    return {_name_file(plan, path): path for path in ordered} | {path.as_posix(): path for path in _in_own_folders(plan)}


def list_others(plan: Plan) -> list[Path]:
    """Return the files in the run's folder that no step of relm writes, so that they are not sent."""
    known = set(_list_inside(plan.run_folder, match_run_files(plan, only_pushed=False)))
    return [path for path in _list_inside(plan.run_folder) if path not in known]


def find_paths(plan: Plan, names: Iterable[str]) -> dict[str, Path]:
    """Return name -> path of the names that push gives this plan's files, except in the user's own folders."""
    shared, folders = set(list_shared_files(plan)), _folders(plan)
    found = {}
    for name in names:
        first, _, rest = name.partition("/")
        path = plan.work / rest if first == "work" else Path(name)
        is_inside = any(_has(folder, path, pattern) for folder, pattern in folders.items())
        if (path in shared or is_inside) and _name_file(plan, path) == name:
            found[name] = path
    return found


def _name_file(plan: Plan, path: Path) -> str:
    return f"work/{path.relative_to(plan.work).as_posix()}" if path.is_relative_to(plan.work) else path.as_posix()


def _folders(plan: Plan) -> dict[Path, re.Pattern[str]]:
    """Return folder -> pattern of the sent paths in it: the run's and, for the first of several seeds, the published ones."""
    own = {plan.run_folder: match_run_files(plan, only_pushed=True)}
    published = {False: plan.results, True: plan.reference_results} if not plan.number else {}
    return own | {path: match_published_files(plan, in_reference) for in_reference, path in published.items()}


def _has(folder: Path, path: Path, names: re.Pattern[str]) -> bool:
    return path.is_relative_to(folder) and names.fullmatch(path.relative_to(folder).as_posix()) is not None


def _list_inside(folder: Path, names: re.Pattern[str] = _ANY) -> Iterator[Path]:
    """Yield the files in a folder whose paths in it match a pattern; not hidden ones and links."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and _has(folder, path, names) and path.is_file() and not path.is_symlink():
            yield path


def list_own_folders(plan: Plan) -> list[Path]:
    """Return the recipe's own folders inside the project; an index cannot name the path of one elsewhere."""
    named = [plan.dataset, plan.tokenizer_model, plan.init_model, plan.reference_model]
    folders = {Path(folder) for part in named if part is not None and (folder := part.folder) is not None}
    return sorted(folder for folder in folders if folder.parts and not folder.is_absolute() and not _leads_out(folder))


def _leads_out(folder: Path) -> bool:
    first = folder.parts[0]
    return ".." in folder.parts or first.startswith(("~", ".")) or first in NOT_OWN


def _in_own_folders(plan: Plan) -> Iterator[Path]:
    own = list_own_folders(plan)
    if plan.dataset.folder is not None and Path(plan.dataset.folder) in own:
        yield from identity.folder_files(plan.dataset)
    for model in (plan.tokenizer_model, plan.init_model, plan.reference_model):
        if model is not None and model.folder is not None and Path(model.folder) in own:
            files = [*(model.weights_files if model.weights else []), *(model.tokenizer_files if model.tokenizer else [])]
            yield from (Path(model.folder) / file for file in files)


def find_own_paths(plan: Plan, names: Iterable[str]) -> dict[str, Path]:
    """Return name -> path of the names that push gives files in the user's own folders.

    A dataset's pattern is matched by what reads the folder itself, in a copy of it that has empty files of these names.
    """
    own = list_own_folders(plan)
    listed = [Path(name) for name in names]
    inside = [path for path in listed if any(path.is_relative_to(folder) for folder in own)]
    found: set[Path] = set()
    for model in (plan.tokenizer_model, plan.init_model, plan.reference_model):
        if model is not None and model.folder is not None and Path(model.folder) in own:
            found |= {Path(model.folder) / file for file in (*model.weights_files, *model.tokenizer_files)}
    if plan.dataset.folder is not None and Path(plan.dataset.folder) in own:
        folder = Path(plan.dataset.folder)
        found |= {
            folder / path for path in _match_patterns(plan, [p.relative_to(folder) for p in inside if p.is_relative_to(folder)])
        }
    return {path.as_posix(): path for path in inside if path in found and not path.is_relative_to(plan.work)}


def _match_patterns(plan: Plan, inside: Iterable[Path]) -> set[Path]:
    with TemporaryDirectory(prefix="relm-pull-") as copy:
        for path in inside:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).touch()
        try:
            found = identity.folder_files(plan.dataset.model_copy(update={"folder": copy}))
        except RelmError:  # none of them matches
            return set()
        return {path.relative_to(copy) for path in found}


def choose_group(name: str) -> str:
    """Return the group that a file is pushed with: the folder of its checkpoint, a published folder, or the file itself.

    >>> choose_group("work/runs/a/0123456789ab/main/checkpoints/step-00000010/state.json")
    'work/runs/a/0123456789ab/main/checkpoints/step-00000010'
    """
    parts = name.split("/")
    if "checkpoints" in parts[:-1]:
        return "/".join(parts[: parts.index("checkpoints") + 2])
    return "results" if parts[0] == "results" else name


def sort_states_last(names: Iterable[str]) -> list[str]:
    """Return names in the order for writing: a checkpoint counts once its `state.json` is there, so that comes last."""
    return sorted(names, key=lambda name: ("/checkpoints/" in name and name.endswith("/state.json"), name))


def read_recorded_sha256(path: Path) -> str | None:
    """Return the sha256 that a file's sidecar, its checkpoint's `state.json`, its model's sidecar or its result has for it."""
    for beside in (sidecar_of(path), path.with_name("state.json"), sidecar_of(path.with_name(WEIGHTS))):
        try:
            told = json.loads(beside.read_text(encoding="utf-8"))
            sha256 = _find_sha256(told, path.name, is_state=beside.name == "state.json")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(sha256, str):
            return sha256
    folder = next((parent for parent in (path.parent, *path.parent.parents) if (parent / CHECKSUMS).is_file()), None)
    return recorded_sha256(folder, path.relative_to(folder).as_posix()) if folder is not None else None


def _find_sha256(told: Any, name: str, is_state: bool) -> Any:
    """Return the sha256 that a `state.json` or a sidecar has for the file of a name; raise KeyError without one."""
    if is_state:
        return told["sha256"][name]
    return told["sha256"] if told["file"] == name else told["files"][name]["sha256"]
