"""The files that a run needs to go on elsewhere, under the names that an index has for them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from relm import identity
from relm.artifact import sidecar_of
from relm.catalogue import PICKLED_WEIGHTS
from relm.plan import REFERENCE, Plan
from relm.training.run_folder import COMPILED, WEIGHTS
from relm.training.shard_stamps import RECORD

# What belongs to one machine: programs of its device, and what it knows of its own files.
LEFT_OUT = (COMPILED, "lock", RECORD)


def files_of(plan: Plan) -> dict[str, Path]:
    """Name -> file, of all that is there: downloads, documents, tokenizer, examples, weights, the run's folder, results."""
    found = {f"work/{path.relative_to(plan.work).as_posix()}": path for path in sorted(set(_in_work(plan)))}
    for folder in (plan.results, plan.reference_results):
        found |= {path.as_posix(): path for path in _inside(folder)}
    return found | {path.as_posix(): path for path in _in_own_folders(plan)}


def _in_work(plan: Plan) -> Iterator[Path]:
    for product in _single_products(plan):
        record = product.with_name(f"{product.name}.record.json")
        yield from (path for path in (product, sidecar_of(product), record) if path.is_file())
    examples = {plan.examples_folder(phase) for phase in plan.phases}
    for folder in (plan.documents(plan.shards[0], "train").parent, plan.tokenizer.parent, *examples, plan.run_folder):
        yield from _inside(folder)


def _single_products(plan: Plan) -> Iterator[Path]:
    """Downloads, and what was copied out of folders of one's own: in folders that other recipes may use as well."""
    yield from (plan.download(shard) for shard in plan.dataset.files)
    if plan.tokenizer_model is not None:
        yield from plan.tokenizer_files
    yield from plan.starting_weights(plan.phases[0])
    if plan.reference_model is not None:
        yield from plan.evaluated_model(REFERENCE)
    for name, model in ((plan.recipe.init_from, plan.init_model), (plan.recipe.expect_reference, plan.reference_model)):
        if name is not None and model is not None and model.converted:
            yield plan.model_download(name, model, PICKLED_WEIGHTS)
    yield from (plan.test_download(test) for test in plan.tests)


def _inside(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if not any(part.startswith(".") or part in LEFT_OUT for part in parts) and path.is_file():
            yield path


def own_folders(plan: Plan) -> list[Path]:
    """Those inside the project that a recipe names; of one elsewhere an index could not say where it belongs."""
    named = [plan.dataset, plan.tokenizer_model, plan.init_model, plan.reference_model]
    folders = {Path(folder) for part in named if part is not None and (folder := part.folder) is not None}
    return sorted(folder for folder in folders if folder.parts and not folder.is_absolute() and not _leads_out(folder))


def _leads_out(folder: Path) -> bool:
    return ".." in folder.parts or folder.parts[0].startswith("~") or folder.parts[0] in ("work", "results")


def _in_own_folders(plan: Plan) -> Iterator[Path]:
    own = own_folders(plan)
    if plan.dataset.folder is not None and Path(plan.dataset.folder) in own:
        yield from identity.folder_files(plan.dataset)
    for model in (plan.tokenizer_model, plan.init_model, plan.reference_model):
        if model is not None and model.folder is not None and Path(model.folder) in own:
            files = [*(model.weights_files if model.weights else []), *(model.tokenizer_files if model.tokenizer else [])]
            yield from (Path(model.folder) / file for file in files)


def together(name: str) -> str:
    """What is pushed whole or not at all: the folder of a checkpoint, a published folder; any other file is for itself.

    >>> together("work/runs/a/0123456789ab/main/checkpoints/step-00000010/state.json")
    'work/runs/a/0123456789ab/main/checkpoints/step-00000010'
    """
    parts = name.split("/")
    if "checkpoints" in parts[:-1]:
        return "/".join(parts[: parts.index("checkpoints") + 2])
    return "results" if parts[0] == "results" else name


def last_of_all(names: Iterable[str]) -> list[str]:
    """Names in the order in which a run may be written: a checkpoint counts from its `state.json` on, so that comes last."""
    return sorted(names, key=lambda name: ("/checkpoints/" in name and name.endswith("/state.json"), name))


def told_sha256(path: Path) -> str | None:
    """What a file's sidecar, its checkpoint's `state.json` or its model's sidecar says that it is; None: nothing says it."""
    for beside in (sidecar_of(path), path.with_name("state.json"), sidecar_of(path.with_name(WEIGHTS))):
        try:
            told = json.loads(beside.read_text(encoding="utf-8"))
            sha256 = _named_in(told, path.name, is_state=beside.name == "state.json")
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(sha256, str):
            return sha256
    return None


def _named_in(told: Any, name: str, is_state: bool) -> Any:
    """Return the sha256 that a `state.json` or a sidecar has for the file of a name; a KeyError says that it has none."""
    if is_state:
        return told["sha256"][name]
    return told["sha256"] if told["file"] == name else told["files"][name]["sha256"]
