"""`relm check`: find files of a published folder or a run's folder that changed since the steps made them."""

from collections.abc import Collection, Sequence
from pathlib import Path

from relm.errors import RelmError
from relm.plan.published_files import LISTS, UNEXPECTED, FileDifference, find_changed, first_differing_step
from relm.provenance.deleted_sources import describe_deleted, find_deleted
from relm.provenance.step_record import collect
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.replay.attested_run import find_run, is_run_folder, run_of_folder
from relm.replay.recorded_files import describe_checked_files, published_records, wrong_files
from relm.reporting.known_hashes import find_differences


class DamagedResult(RelmError):
    """Raised when a folder differs from what was published."""


def check_folders(folders: Sequence[Path]) -> str:
    """Compare every file of the folders with its recorded hash, and return a line for each folder.

    Raises DamagedResult with each file that differs or is missing, and the step that made it.
    """
    found = [_check(folder) for folder in folders]
    text = "\n".join(lines for _, lines in found)
    if any(is_damaged for is_damaged, _ in found):
        raise DamagedResult(text)
    return text


def _check(folder: Path) -> tuple[bool, str]:
    """Return True if a folder is damaged, and the lines to print."""
    if not is_published(folder) and is_run_folder(folder):
        return _check_run_folder(folder)
    differences, count = find_differences(folder, reads_all=True)
    text = describe_differences(folder, differences, count)
    if find_damaged(differences):
        return True, text
    return False, "\n  ".join([text, *describe_deleted(find_deleted(published_records(folder)))])


def require_as_published(folder: Path, names: Collection[str]) -> None:
    """Raise DamagedResult if one of these files of a published folder changed, before anything is quoted from it."""
    for changed in find_changed(folder, names):
        raise DamagedResult(f"{folder}/{changed}. Nothing is quoted from it. To repair it, {_describe_remedy(folder)}")


def is_published(folder: Path) -> bool:
    """Return True if a folder has the list of hashes that relm publishes."""
    return any((folder / name).is_file() for name in LISTS)


def _check_run_folder(folder: Path) -> tuple[bool, str]:
    """Compare the files of a run's folder with the steps' records; return True if one differs, and the lines to print."""
    project = Project()
    runs = [find_run(project, folder, phase) for phase in project.plan(run_of_folder(folder)).phases]
    wrong = [*wrong_files(runs[0]), *(line for run in runs for line in run.differing_lines())]
    try:
        deleted = find_deleted(collect([run.weights for run in runs]))
    except RelmError as error:  # a record outside the run's folder is damaged
        wrong.append(str(error))
    if wrong:
        return True, "\n  ".join(
            [f"{folder}: DAMAGED: delete these files, and the same snakemake command makes them again", *wrong]
        )
    return False, "\n  ".join([
        f"{folder}: whole",
        *dict.fromkeys(line for run in runs for line in describe_checked_files(run)),
        *describe_deleted(deleted),
    ])  # fmt: skip


def find_damaged(differences: Sequence[FileDifference]) -> list[FileDifference]:
    """Return the published files that are changed or missing; an added file damages nothing."""
    return [found for found in differences if found.state != UNEXPECTED]


def describe_differences(folder: Path, differences: Sequence[FileDifference], count: int) -> str:
    """Return the lines to print: the verdict, each difference, the first step whose files differ, and the remedy."""
    named = [f"  {found}" for found in differences]
    if not (damaged := find_damaged(differences)):
        return "\n".join([f"{folder}: whole: {count} files have their published sha256", *named])
    files = "1 file differs or is missing" if len(damaged) == 1 else f"{len(damaged)} files differ or are missing"
    return "\n".join([
        f"{folder}: DAMAGED: {files}, the first of them from step {first_differing_step(list(differences)) or 'unknown'}",
        *named,
        f"  {_describe_remedy(folder)}",
    ])  # fmt: skip


def _describe_remedy(folder: Path) -> str:
    """Return what to do about a damaged folder."""
    if folder.parts[:1] == ("results",):
        return f"delete {folder}, and `snakemake {folder}` publishes it again from the run's own files"
    return "copy these files again from where the folder came from"


def describe_published(plan: Plan) -> str:
    """Return a phrase on a recipe's published folder; hash only files that changed since the last check."""
    try:
        differences, count = find_differences(plan.results)
    except RelmError as error:
        return f"cannot be checked: {error}"
    if damaged := find_damaged(differences):
        names = ", ".join(found.name for found in damaged)
        return f"DAMAGED: {names}; `relm check {plan.results}` says more"
    return f"{count} files as they were published"
