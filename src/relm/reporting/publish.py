"""The last, cheap step: finished files linked into `results/NAME`, which is complete or absent."""

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
    """Name in `results/NAME` -> the finished file, for everything that a run publishes."""
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
        **({COMPILATION: told} if (told := reported_compilation(plan)).is_file() else {}),
        **evaluation_names(plan.evaluations(), plan.evaluations(BEFORE)),
        "verify.json": plan.run_folder / "verify.json",
    }


def reported_compilation(plan: Plan) -> Path:
    """What `relm compile` had found when the report was written, which tells of it; absent where there was nothing."""
    return plan.run_folder / "report" / COMPILATION


def evaluation_names(evaluations: Mapping[str, Path], before: Mapping[str, Path]) -> dict[str, Path]:
    """Name in `results/NAME` -> figures, of the trained model and of the weights it started from."""
    return {f"eval/{task}.json": path for task, path in evaluations.items()} | {
        f"eval/before/{task}.json": path for task, path in before.items()
    }


def publish_run(plan: Plan, folder: Path) -> str:
    """Publish a finished run, once every file of its model was compared with the sidecar.

    Raises:
        RelmError: a file of the model is not what the sidecar says, or as for `publish`.
    """
    files = published_files(plan)
    _require_present(files, folder)
    checked_model(files[WEIGHTS])
    return publish(files, folder)


def publish(plan_files: Mapping[str, Path], folder: Path) -> str:
    """Make ``folder`` hold exactly ``plan_files`` (name in the folder -> finished file): hard links or, elsewhere, copies.

    Built beside its place under a temporary name and renamed, so that whoever looks finds all files or none. A folder that is
    there already is replaced only once the new one is whole; a temporary folder that a killed run left is removed.

    Raises:
        RelmError: a file is absent, or the place cannot be written; what was there before stays.
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
    how = f"{copied} of them copied from another file system" if copied else "hard-linked"
    return f"{folder} has {len(plan_files)} files of {format_bytes(size)}, {how}"


def _require_present(plan_files: Mapping[str, Path], folder: Path) -> None:
    if absent := [str(path) for path in plan_files.values() if not path.is_file()]:
        raise RelmError(f"{folder}: cannot be published without {', '.join(absent)}; run the steps that make them")


def _link(source: Path, target: Path) -> bool:
    """Hard-link a file, or copy it where the file system cannot; whether it was copied for that reason.

    A log is always copied: training writes on in it, and cuts it where it is resumed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".jsonl":
        shutil.copy2(source, target)
        return False
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without hard links; what is really wrong, the copy says
        shutil.copy2(source, target)
        return True
    return False


def _swap(partial: Path, folder: Path, before: Path) -> None:
    """Put ``partial`` where ``folder`` is; if that fails, ``folder`` is as it was."""
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
