"""Publishing, the last and cheap step: finished files are linked into `results/NAME`, which is complete or absent."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.recipes.plan import BEFORE, Plan
from relm.recipes.run_folder import DEVICE_FIGURES, RECORDS, WEIGHTS
from relm.replay.attested_run import published_name
from relm.training.model_files import checked_model

REPORT_FILES = ("README.md", "report.html", "recipe.json", "provenance.json", "ro-crate-metadata.json")
COMPILATION = "compile.json"
MODEL_FILES = ("config.json", "model.safetensors", "model.safetensors.json", "tokenizer.json", "tokenizer_config.json")


def published_files(plan: Plan) -> dict[str, Path]:
    """Return the files that a run publishes, by their names in `results/NAME`."""
    model = plan.model_folder(plan.phases[-1])
    model_files = [*MODEL_FILES, *(["generation_config.json"] if plan.recipe.model.generates else [])]
    return {
        **{name: plan.run_folder / "report" / name for name in REPORT_FILES},
        **{name: model / name for name in model_files},
        **{
            published_name(name, phase, plan.phases): plan.run_folder / phase / name
            for name in RECORDS
            for phase in plan.phases
        },
        **{published_name(DEVICE_FIGURES, phase, plan.phases): path for phase, path in plan.device_figures().items()},
        **({COMPILATION: path} if (path := reported_compilation(plan)).is_file() else {}),
        **evaluation_names(plan.evaluations(), plan.evaluations(BEFORE)),
        "verify.json": plan.run_folder / "verify.json",
    }


def reported_compilation(plan: Plan) -> Path:
    """Return the path of the `compile.json` that the report shows; absent where the recipe was not compiled by then."""
    return plan.run_folder / "report" / COMPILATION


def evaluation_names(evaluations: Mapping[str, Path], before: Mapping[str, Path]) -> dict[str, Path]:
    """Return the figures of the trained model and of its starting weights, by their names in `results/NAME`."""
    return {f"eval/{task}.json": path for task, path in evaluations.items()} | {
        f"eval/before/{task}.json": path for task, path in before.items()
    }


def publish_run(plan: Plan, folder: Path) -> str:
    """Compare every file of a finished run's model with the sidecar, then publish the run.

    Raises:
        RelmError: a file of the model differs from the sidecar, or as for `publish`.
    """
    files = published_files(plan)
    _require_present(files, folder)
    checked_model(files[WEIGHTS])
    return publish(files, folder)


def publish(plan_files: Mapping[str, Path], folder: Path) -> str:
    """Make ``folder`` hold exactly ``plan_files`` (finished files by name in the folder), as hard links or else copies.

    It is built beside its path under a temporary name and renamed, so that readers find all files or none. An existing folder
    is replaced only once the new one is whole; a temporary folder that a killed run left is removed.

    Raises:
        RelmError: a file is absent, or the folder cannot be written; the existing folder stays.
    """
    _require_present(plan_files, folder)
    partial, before = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "before"))
    try:
        shutil.rmtree(partial, ignore_errors=True)
        copied = sum(_link(source, partial / name) for name, source in plan_files.items())
        _swap(partial, folder, before)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RelmError(f"{folder}: cannot be written: {error.strerror} ({error.filename}); nothing was changed") from error
    size = sum(path.stat().st_size for path in plan_files.values())
    manner = f"{copied} of them copied from another file system" if copied else "hard-linked"
    return f"{folder} has {len(plan_files)} files of {format_bytes(size)}, {manner}"


def _require_present(plan_files: Mapping[str, Path], folder: Path) -> None:
    if absent := [str(path) for path in plan_files.values() if not path.is_file()]:
        raise RelmError(f"{folder}: cannot be published without {', '.join(absent)}; run the steps that make them")


def _link(source: Path, target: Path) -> bool:
    """Hard-link a file, or copy it where the file system cannot, and return True if it was copied for that reason.

    A log is always copied: training appends to it, and truncates it when it resumes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".jsonl":
        shutil.copy2(source, target)
        return False
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without hard links; the copy raises any other error
        shutil.copy2(source, target)
        return True
    return False


def _swap(partial: Path, folder: Path, before: Path) -> None:
    """Replace ``folder`` by ``partial``; if that fails, ``folder`` is unchanged."""
    shutil.rmtree(before, ignore_errors=True)
    replaces = folder.exists()
    if replaces:
        folder.rename(before)
    try:
        partial.rename(folder)
    except OSError:
        if replaces:
            before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)
