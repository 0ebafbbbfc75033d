"""Publish, the last and cheap step: copy finished files into `results/NAME`, which is complete or absent."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from relm.artifact import atomic_file, sha256_of
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.plan.products import find_maker, published_files
from relm.plan.published_files import format_checksums, read_crate_hashes
from relm.provenance.step_record import require_as_made, require_phases_as_made
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKSUMS, METADATA, WEIGHTS
from relm.reporting.file_copies import copy_file
from relm.reporting.known_hashes import note_checked
from relm.training.model_files import checked_model


def publish_run(plan: Plan, folder: Path) -> str:
    """Publish a finished run; each file must be the one that its report or its model's sidecar lists."""
    files = published_files(plan)
    _require_present(files, folder)
    checked_model(files[WEIGHTS])
    files = published_files(plan)  # that check restores a lost generation_config.json
    for run in plan.runs:
        require_phases_as_made(run)
    for name, path in files.items():
        if (maker := find_maker(name)[0]) != "pretrain":
            require_as_made(path, first_output=files["report.html"] if maker == "report" else None)
    reported = read_crate_hashes(files[METADATA].parent) or {}
    return publish(files, folder, reported)


def publish(plan_files: Mapping[str, Path], folder: Path, reported: Mapping[str, str] | None = None) -> str:
    """Make ``folder`` hold exactly ``plan_files`` (finished files by name in the folder) and the list of their hashes.

    The folder is built under a temporary name and renamed, so readers find all files or none; after an error the existing
    folder stays. `reported` maps names to the sha256 that these files must have.
    """
    _require_present(plan_files, folder)
    partial, before = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "before"))
    try:
        shutil.rmtree(partial, ignore_errors=True)
        for name, source in plan_files.items():
            copy_file(source, partial / name)
        hashes = {name: sha256_of(partial / name) for name in plan_files}
        for name, sha256 in (reported or {}).items():
            if hashes.get(name, sha256) != sha256:
                raise RelmError(
                    f"{plan_files[name]}: sha256 is {hashes[name]}, but the report lists {sha256}: changed since. Delete it "
                    f"and {plan_files[METADATA]}, and run the same command again"
                )
        with atomic_file(partial / CHECKSUMS, "w") as file:
            file.write(format_checksums(hashes))
        _swap(partial, folder, before)
    except (OSError, RelmError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, RelmError):
            raise
        raise RelmError(f"{folder}: cannot be written: {error.strerror} ({error.filename}); nothing was changed") from error
    note_checked(folder, hashes | {CHECKSUMS: sha256_of(folder / CHECKSUMS)})
    size = sum(path.stat().st_size for path in plan_files.values())
    return f"{folder} has {len(plan_files) + 1} files of {format_bytes(size)}"


def _require_present(plan_files: Mapping[str, Path], folder: Path) -> None:
    if absent := [str(path) for path in plan_files.values() if not path.is_file()]:
        raise RelmError(f"{folder}: cannot be published without {', '.join(absent)}; run the steps that make them")


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
