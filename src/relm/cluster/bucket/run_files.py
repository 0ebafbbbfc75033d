"""The files that a run needs to resume elsewhere, under their names in an index.

Push searches for files of these names, and pull accepts no others: both use this module.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from relm.artifact import sidecar_of
from relm.errors import RelmError
from relm.recipes import identity
from relm.recipes.plan import BEFORE, REFERENCE, TRAINED, Plan
from relm.recipes.published_models import PICKLED_WEIGHTS
from relm.recipes.run_folder import (
    CHECKPOINT_FILES,
    CHECKSUMS,
    COMPILED,
    CONTAMINATION,
    DEVICE_FIGURES,
    FINAL_LOGS,
    RECORDS,
    REPLACED,
    REPORT_FILES,
    RESOLVED,
    WEIGHTS,
)
from relm.recipes.section import NAME
from relm.replay.attested_run import published_name
from relm.replay.published_files import recorded_sha256
from relm.reporting.publish import COMPILATION, MODEL_FILES, published_files
from relm.reporting.reference import PAGE
from relm.reporting.seeds import FOLDER as SEEDS
from relm.training.shard_stamps import RECORD

# Files that belong to one machine: programs of its device, and its records of its own files.
LEFT_OUT = (COMPILED, "lock", RECORD)
# Folders of a checkout with code that is run, and those of runs: none of them counts as the user's own.
NOT_OWN = ("work", "results", "src", "recipes", "profiles", "containers", "envs", ".ci")
_VISIBLE = r"[^./][^/]*"
_FIGURES = rf"{NAME.pattern}\.json"
_KEY = identity.KEY.pattern  # an earlier version had none in these paths
_WITH_RECORDS = r"(\.json|\.record\.json)?"


class Folder(NamedTuple):
    """A folder with any count of files, and the pattern of their paths inside it."""

    path: Path
    names: re.Pattern[str]


def list_files(plan: Plan) -> dict[str, Path]:
    """Return name -> file of all existing files: downloads, documents, tokenizer, examples, weights, run folder, results."""
    known = {path for path in list_single_files(plan) if path.is_file()}
    known |= {path for folder in folders(plan) for path in _list_inside(folder.path) if _is_among(folder, path)}
    # Those in the work folder come first: their sidecars have the hashes, which their published links lack.
    ordered = sorted(known, key=lambda path: (not path.is_relative_to(plan.work), path))
    return {_name_file(plan, path): path for path in ordered} | {path.as_posix(): path for path in _in_own_folders(plan)}


def list_others(plan: Plan) -> list[Path]:
    """Return the files in the run's folder that no step of relm writes, so that they are not sent."""
    (run, *_) = folders(plan)
    return [path for path in _list_inside(run.path) if not _is_among(run, path)]


def find_paths(plan: Plan, names: Iterable[str]) -> dict[str, Path]:
    """Return name -> path of the names that push gives this plan's files, except in the user's own folders."""
    singles, kept = set(list_single_files(plan)), folders(plan)
    found = {}
    for name in names:
        first, _, rest = name.partition("/")
        path = plan.work / rest if first == "work" else Path(name)
        if (path in singles or any(_is_among(folder, path) for folder in kept)) and _name_file(plan, path) == name:
            found[name] = path
    return found


def _name_file(plan: Plan, path: Path) -> str:
    return f"work/{path.relative_to(plan.work).as_posix()}" if path.is_relative_to(plan.work) else path.as_posix()


def list_single_files(plan: Plan) -> Iterator[Path]:
    """Yield the files whose names the plan has, there or not: products, each with its sidecar and its record."""
    for product in (*_single_products(plan), *_products_of_data(plan)):
        yield from (product, sidecar_of(product), product.with_name(f"{product.name}.record.json"))


def folders(plan: Plan) -> list[Folder]:
    """Return the run's folder and, for the first of a recipe's seeds, its published ones."""
    own = Folder(plan.run_folder, re.compile("|".join(_in_run_folder(plan))))
    if plan.number:
        return [own]
    records = [published_name(name, phase, plan.phases) for name in (*RECORDS, DEVICE_FIGURES) for phase in plan.phases]
    names = [name for name in published_files(plan) if "/" not in name or name.startswith(f"{SEEDS}/")]
    results = _either(*names, *records, COMPILATION, CHECKSUMS)
    return [
        own,
        Folder(plan.results, re.compile(rf"{results}|eval/(before/|{CONTAMINATION}/)?{_FIGURES}")),
        Folder(plan.reference_results, re.compile(rf"{_either(PAGE, 'verify.json', CHECKSUMS)}|eval/{_FIGURES}")),
    ]


def _in_fine_tuning_folder(folder: str, phase: str) -> Iterator[str]:
    """Yield patterns of the paths of an evaluation's training runs, from whose checkpoints and answers it goes on.

    Args:
        folder: pattern of the evaluation's folder.
        phase: name of the training's phase, which is the protocol's.
    """
    yield rf"{folder}/examples/{_either('manifest.json', 'train.arrow')}{_WITH_RECORDS}"
    yield rf"{folder}/seed-[0-9]+/{_either('figures.json', 'predictions.json')}"
    yield rf"{folder}/seed-[0-9]+/{phase}/{_either(*RECORDS, DEVICE_FIGURES)}"
    yield rf"{folder}/seed-[0-9]+/{phase}/checkpoints/step-[0-9]{{8}}/{_either(*CHECKPOINT_FILES, 'state.json')}"


def _in_run_folder(plan: Plan) -> Iterator[str]:
    """Yield patterns of the paths inside the run's folder."""
    phase = _either(*plan.phases)
    yield f"{phase}/({FINAL_LOGS}/)?{_either(*RECORDS, DEVICE_FIGURES)}"
    yield f"{phase}/model/{_either(*MODEL_FILES, 'generation_config.json')}{_WITH_RECORDS}"
    yield f"{phase}/checkpoints/step-[0-9]{{8}}/{_either(*CHECKPOINT_FILES, 'state.json')}"
    yield f"{phase}/tensorboard/{_VISIBLE}"
    # Not all files there: Weights & Biases would take the address of its server from `settings`.
    yield rf"{phase}/wandb/(run_id|(offline-)?run-{_VISIBLE}(/{_VISIBLE})*)"
    yield f"{_either(TRAINED, BEFORE, REFERENCE, CONTAMINATION)}/({_KEY}/)?{_FIGURES}"
    for test in plan.tests:
        if (declaration := plan.evaluation(test)).fine_tunes:
            folder = f"{_either(TRAINED, BEFORE, REFERENCE)}/{_either(test)}/{_KEY}"
            yield from _in_fine_tuning_folder(folder, _either(declaration.name))
    yield f"{REFERENCE}/{_either(PAGE)}"
    yield f"report/({_KEY}/)?{_either(*REPORT_FILES, COMPILATION)}{_WITH_RECORDS}"
    yield f"(verify/{_KEY}/)?{_either('verify.json', 'verify_reference.json')}{_WITH_RECORDS}"
    yield f"{_either(COMPILATION, REPLACED)}{_WITH_RECORDS}"
    yield re.escape(RESOLVED)


def _either(*names: str) -> str:
    return f"({'|'.join(re.escape(name) for name in dict.fromkeys(names))})"


def _is_among(folder: Folder, path: Path) -> bool:
    inside = path.is_relative_to(folder.path)
    return inside and folder.names.fullmatch(path.relative_to(folder.path).as_posix()) is not None


def _products_of_data(plan: Plan) -> Iterator[Path]:
    """Yield documents, tokenizer and examples, which recipes with the same keys share."""
    yield from plan.document_files
    yield plan.tokenizer
    for phase in plan.phases:
        manifest = plan.manifest(phase)
        yield from (manifest, manifest.with_name("croissant.json"))
        for examples in plan.example_files(phase):
            yield examples
            if examples.suffix == ".bin":
                yield examples.with_suffix(".idx")


def _single_products(plan: Plan) -> Iterator[Path]:
    """Yield downloads, and copies from the user's own folders: in folders that other recipes may use as well."""
    yield from (plan.download(shard) for shard in plan.dataset.files)
    if plan.tokenizer_model is not None:
        yield from plan.tokenizer_files
    yield from plan.starting_weights(plan.phases[0])
    if plan.reference_model is not None:
        yield from plan.evaluated_model(REFERENCE)
    for name, model in ((plan.recipe.init_from, plan.init_model), (plan.recipe.expect_reference, plan.reference_model)):
        if name is not None and model is not None and model.converted:
            yield plan.model_download(name, model, PICKLED_WEIGHTS)
    yield from (path for test in plan.tests for path in plan.test_downloads(test).values())


def _list_inside(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder; not hidden ones, links, and what belongs to this machine."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if not any(part.startswith(".") or part in LEFT_OUT for part in parts) and path.is_file() and not path.is_symlink():
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
