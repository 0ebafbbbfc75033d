"""The files of the work folder that recipes, published results and kept runs need. What is not known counts as needed."""

from collections.abc import Iterable, Mapping, Sequence
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
from relm.reporting.stored_runs import StoredRun, find_published, find_stored_runs, iterate_published, requested_runs


class Needs:
    """The needed files and folders of a work folder, and the faults because of which more may be needed."""

    def __init__(self, projects: Mapping[Path, Project], work: Path) -> None:
        """Plan every recipe and twin of each checkout, and read what its published results name."""
        self._projects, self._work = projects, work
        self._needed: set[Path] = set()
        self._published: set[tuple[str, str]] = set()
        self.faults: list[str] = []
        """Reasons why it is not known which data are needed."""
        self._stamps = self._read_stamps()
        for root, project in projects.items():
            self.faults += project.faults()
            for name in project.names():
                for twin in (name, f"{SMOKE}{name}"):
                    self._add_requested(project, twin)
            self._add_stored(project)
            self._published |= find_published(project, root / "results")
            for path in iterate_published(root / "results", PROVENANCE):
                self._add_published(path)

    def has(self, path: Path) -> bool:
        """Return True if a file is needed, or anything in a folder."""
        return path in self._needed

    def find_reason(self, run: StoredRun) -> str | None:
        """Return the reason why a run is needed; None: it is not."""
        if (run.name, run.fingerprint) in self._published:
            return "a published result names it"
        for project in self._projects.values():
            requested = requested_runs(project, run.name)
            if requested.fault:
                return f"its recipe has faults: {requested.fault}"
            if requested.has(run):
                return "its recipe asks for it"
        return "a published result names its files" if self.has(run.folder) else None

    def fingerprints(self, name: str) -> list[str]:
        """Return the fingerprints that recipes ask for under a run's name now."""
        found = [requested_runs(project, name).fingerprints for project in self._projects.values()]
        return list(dict.fromkeys(fingerprint for each in found for fingerprint in each))

    def add_run(self, run: StoredRun) -> None:
        """Add the data of a run that is kept although no recipe asks for it."""
        recorded = (run.resolved or {}).get(DATA_FOLDERS)
        if isinstance(recorded, list) and all(isinstance(path, str) for path in recorded):
            self._add(self._work / path for path in recorded)
        else:
            self.faults.append(f"{run.folder}: which data it needs was not recorded")

    def require_unchanged(self) -> None:
        """Raise an error if a recipe or a published result was edited since the needs were found.

        Raises:
            RelmError: one was.
        """
        if self._read_stamps() != self._stamps:
            raise RelmError("a recipe or a published result changed meanwhile; give the command again, it looks anew")

    def _read_stamps(self) -> dict[Path, list[int]]:
        files: list[Path] = []
        for root, project in self._projects.items():
            files += [*project.recipes.rglob("*.yaml"), *iterate_published(root / "results", PROVENANCE)]
        return {path: stamp_of(path) for path in files if path.exists()}

    def _add_requested(self, project: Project, name: str) -> None:
        requested = requested_runs(project, name)
        if requested.fault:
            self.faults.append(f"{name}: {requested.fault}")
        try:
            for plan in requested.plans:
                self._add_plan(plan)
        except (RelmError, OSError) as error:
            self.faults.append(f"{name}: {shorten_error(error) if isinstance(error, RelmError) else error}")

    def _add_stored(self, project: Project) -> None:
        """Add the data of the stored runs that no recipe's own name asks for: variations, and runs on named machines."""
        for run in find_stored_runs(self._work):
            if run.name.removeprefix(SMOKE) in project.names():
                continue
            requested = requested_runs(project, run.name)
            if requested.has(run):
                self._add_requested(project, run.name)
            elif requested.fault:
                self.add_run(run)

    def _add_plan(self, plan: Plan) -> None:
        self._add([*list_shared_files(plan), *(job.folder for job in plan.data_jobs), plan.run_folder])

    def _add_published(self, path: Path) -> None:
        try:
            steps = read_json(path)["steps"]
            entries = [entry for step in steps for entry in (*step["inputs"], *step["outputs"])]
            self._add(expand_path(entry["path"]) for entry in entries if entry["path"].startswith("work/"))
        except (RelmError, KeyError, TypeError, AttributeError):
            self.faults.append(f"{path}: damaged, so that nobody knows which files it names")

    def _add(self, paths: Iterable[Path]) -> None:
        for path in paths:
            while path != self._work and path != path.parent and path not in self._needed:
                self._needed.add(path)
                path = path.parent


def describe_faults(faults: Sequence[str], shown: int = 3) -> list[str]:
    """Return lines on faults, the first ones only."""
    more = [f"  and {len(faults) - shown} more"] if len(faults) > shown else []
    return [*(f"  {fault}" for fault in faults[:shown]), *more]
