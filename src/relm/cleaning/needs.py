"""Find the files of the work folder that recipes, published results and kept runs need; unknown ones count as needed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from relm.artifact import read_json, stamp_of
from relm.errors import RelmError
from relm.plan.products import list_shared_files
from relm.recipes.plan import Plan
from relm.recipes.project import Project, shorten_error
from relm.recipes.redaction import expand_path
from relm.recipes.resolved import DATA_FOLDERS
from relm.recipes.run_folder import PROVENANCE
from relm.recipes.run_name import SMOKE
from relm.reporting.run_record import RunRecord, find_requested, find_runs, iterate_published


class Needs:
    """The needed files and folders of a work folder, and the faults that may hide more of them."""

    def __init__(self, projects: Sequence[Project], work: Path) -> None:
        """Plan every recipe and twin of each checkout, and read the files that its published results name."""
        self._projects, self._work = projects, work
        self._needed: set[Path] = set()
        self._stamps = self._read_stamps()
        self.faults = [fault for project in projects for fault in project.faults()]
        """Why some needed data may be unknown."""
        self.runs = find_runs(work, projects)
        for project in projects:
            for name in project.names():
                for twin in (name, f"{SMOKE}{name}"):
                    requested = find_requested([project], twin)
                    self.faults += [f"{twin}: {requested.fault}"] if requested.fault else []
                    for plan in requested.plans:
                        self._add_plan(plan)
            for path in iterate_published(project, PROVENANCE):
                self._add_published(path)
        for run in self.runs:
            if run.plan is not None:  # also a variation, or a run on a named machine
                self._add_plan(run.plan)
            elif run.requested.fault:
                self.add_run(run)

    def has(self, path: Path) -> bool:
        """Return True if a file, or anything in a folder, is needed."""
        return path in self._needed

    def has_run(self, run: RunRecord) -> bool:
        """Return True if a recipe asks for a run or has faults, or a published result names the run or its files."""
        return run.is_published or not run.is_old or self.has(run.folder)

    def add_run(self, run: RunRecord) -> None:
        """Add the data of a run that is kept although no recipe asks for it."""
        recorded = (run.resolved or {}).get(DATA_FOLDERS)
        if isinstance(recorded, list) and all(isinstance(path, str) for path in recorded):
            self._add(self._work / path for path in recorded)
        else:
            self.faults.append(f"{run.folder}: lacks a record of its data")

    def require_unchanged(self) -> None:
        """Raise RelmError if a recipe or a published result was edited since the needs were found."""
        if self._read_stamps() != self._stamps:
            raise RelmError("a recipe or a published result changed meanwhile; run relm gc again")

    def _read_stamps(self) -> dict[Path, list[int]]:
        found = [project.recipes.rglob("*.yaml") for project in self._projects]
        files = [path for each in found for path in each]
        files += [path for project in self._projects for path in iterate_published(project, PROVENANCE)]
        return {path: stamp_of(path) for path in files if path.exists()}

    def _add_plan(self, plan: Plan) -> None:
        try:
            self._add([*list_shared_files(plan), *(job.folder for job in plan.data_jobs), plan.run_folder])
        except (RelmError, OSError) as error:
            self.faults.append(f"{plan.name}: {shorten_error(error)}")

    def _add_published(self, path: Path) -> None:
        try:
            steps = read_json(path)["steps"]
            entries = [entry for step in steps for entry in (*step["inputs"], *step["outputs"])]
            self._add(expand_path(entry["path"]) for entry in entries if entry["path"].startswith("work/"))
        except (RelmError, KeyError, TypeError, AttributeError):
            self.faults.append(f"{path}: damaged, so the files that it names are unknown")

    def _add(self, paths: Iterable[Path]) -> None:
        for path in paths:
            while path != self._work and path != path.parent and path not in self._needed:
                self._needed.add(path)
                path = path.parent
