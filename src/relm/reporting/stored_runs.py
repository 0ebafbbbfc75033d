"""The runs in the work folder: what each has reached, read from its files alone, whether or not its recipe still exists."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import read_sealed, require_regular_file, sidecar_of
from relm.errors import RelmError
from relm.provenance.step_record import require_as_made
from relm.recipes.identity import KEY
from relm.recipes.plan import TRAINED, Plan
from relm.recipes.project import Project, shorten_error
from relm.recipes.resolved import KeyDifference, differing_keys, resolve
from relm.recipes.run_folder import CURVE, LOG, RESOLVED, VERIFY, WEIGHTS, newest_first
from relm.recipes.run_name import RUN_NAME, SMOKE, RunName
from relm.reporting.live_steps import LiveStep, is_locked

RUNNING, STOPPED, FINISHED, FAILED, PUBLISHED = "running", "stopped", "finished", "failed", "published"
# A line of a step's log: its time, and `relm STEP: ...` for an error, or `STEP: ...` for what came of it.
_LAST_MESSAGE = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (relm \S+: )?(.*)", re.MULTILINE)
# Beginnings of messages of steps that somebody stopped; the same command resumes.
_STOPPED = ("stopped by ", "interrupted")


class PhaseProgress(NamedTuple):
    """The newest complete line of a phase's train.jsonl, and how far the phase has to go."""

    name: str
    last: Mapping[str, Any]
    """{} before the first line."""
    seconds_per_step: float | None
    """Between the two newest lines; None: there are not two."""
    steps: int | None
    """Steps of the phase; None: nothing tells."""

    @property
    def step(self) -> int:
        """The step reached."""
        return int(self.last.get("step", 0))

    @property
    def seconds_left(self) -> float | None:
        """Time to the last step at the newest rate; None: not known."""
        if self.seconds_per_step is None or self.steps is None:
            return None
        return max(0, self.steps - self.step) * self.seconds_per_step


class DiskUse(NamedTuple):
    """The files of a folder."""

    size: int
    """Bytes on the disk; a file with several names in the folder counts once."""
    changed: float
    """The time at which the newest of them was written, in seconds since the epoch."""


@dataclass(frozen=True)
class StoredRun:
    """A folder `work/runs/NAME/FINGERPRINT`."""

    name: str
    """Name of the run, as in `results/NAME`."""
    fingerprint: str
    folder: Path
    work: Path

    @cached_property
    def resolved(self) -> Mapping[str, Any] | None:
        """The recipe as it was when the run was trained or reported; None: no file has it."""
        for path in (self.folder / RESOLVED, *newest_first(self.folder, "report", "recipe.json")):
            content = read_object(path)
            if isinstance(content.get("recipe"), dict) and content.get("fingerprint") == self.fingerprint:
                return content
        return None

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Evaluation -> its figures, of the trained weights; a damaged file is left out."""
        found = {task: content.get("figures") for task, content in self.evaluations.items()}
        return {task: dict(figures) for task, figures in found.items() if isinstance(figures, dict)}

    @cached_property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Evaluation -> the content of its file; {} for one that was changed since."""
        newest: dict[str, Path] = {}
        for path in newest_first(self.folder, TRAINED, "*.json"):
            if not path.name.endswith(".record.json"):
                newest.setdefault(path.stem, path)
        return {task: read_object(path) if _is_as_made(path) else {} for task, path in sorted(newest.items())}

    @cached_property
    def disk(self) -> DiskUse:
        """The size of its files and their last change."""
        return measure_folder(self.folder)

    @property
    def locks(self) -> list[Path]:
        """The lock files of its phases."""
        return sorted(self.folder.glob("*/lock"))

    @property
    def locked_phase(self) -> str | None:
        """The phase that a trainer works on; None without one."""
        return next((lock.parent.name for lock in self.locks if is_locked(lock)), None)

    def phases(self, steps: Mapping[str, int]) -> list[PhaseProgress]:
        """Return the progress of each phase: those of the recipe in its order, or else those that have files."""
        names = list(steps) or sorted({path.parent.name for path in self.folder.glob(f"*/{LOG}")})
        return [read_progress(self.folder / name, steps.get(name)) for name in names]

    def is_trained(self, phases: Sequence[PhaseProgress]) -> bool:
        """Return True if the model of every phase is finished."""
        return bool(phases) and all(sidecar_of(self.folder / each.name / "model" / WEIGHTS).is_file() for each in phases)

    @cached_property
    def failure(self) -> str | None:
        """The message with which a step of the run failed and whose product is still absent; None: none did."""
        logs = self.work / "logs" / "runs" / self.name / self.fingerprint
        for log in sorted(logs.rglob("*.log")):
            if not any(_is_newer(product, log) for product in self._products_of(log.relative_to(logs).with_suffix(""))):
                is_error, message = _read_last_message(log)
                if is_error and not message.startswith(_STOPPED):
                    return message
        return None

    def _products_of(self, inside: Path) -> list[Path]:
        """Return the products of a step with this log, newest first, of all keys."""
        kind, task = inside.parts[0], inside.name
        if kind in ("report", VERIFY):
            return newest_first(self.folder, kind, "report.html" if kind == "report" else "verify*.json")
        if len(inside.parts) > 1:
            return newest_first(self.folder, kind, f"{task}.json")
        return [self.folder / f"{inside}.json", sidecar_of(self.folder / inside / "model" / WEIGHTS)]


def _is_newer(product: Path, log: Path) -> bool:
    """Return whether a product was made after its step's log was last written."""
    return product.exists() and product.stat().st_mtime_ns > log.stat().st_mtime_ns


class RequestedRuns(NamedTuple):
    """The plans that a name asks for now; several where a recipe stands for runs with different seeds."""

    plans: Sequence[Plan]
    exists: bool
    """False: there is no such recipe or machine."""
    fault: str | None = None
    """The fault because of which nothing can be planned."""

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprints of the plans."""
        return [plan.fingerprint for plan in self.plans]

    def has(self, run: StoredRun) -> bool:
        """Return True if the recipe asks for this run now."""
        return self.plan_of(run) is not None

    def plan_of(self, run: StoredRun) -> Plan | None:
        """Return the plan of a run; None: the recipe does not ask for it now."""
        return next((plan for plan in self.plans if (plan.run_name, plan.fingerprint) == (run.name, run.fingerprint)), None)


class ListedRun(NamedTuple):
    """A stored run beside its recipe as it is now."""

    run: StoredRun
    requested: RequestedRuns
    is_requested: bool
    """True if the recipe asks for this fingerprint."""
    differences: Sequence[KeyDifference] | None
    """Keys of the fingerprint, this run's value first; None: the run or its recipe cannot be compared."""
    phases: Sequence[PhaseProgress]
    state: str

    @property
    def step(self) -> int:
        """The steps reached, over all phases."""
        return sum(phase.step for phase in self.phases)

    @property
    def seed(self) -> int | None:
        """The run's seed, where its recipe asks for several runs; None elsewhere."""
        plan = self.requested.plan_of(self.run) if len(self.requested.plans) > 1 else None
        return None if plan is None else plan.recipe.seed

    @property
    def steps(self) -> int | None:
        """The steps of all phases; None: nothing tells."""
        known = [phase.steps for phase in self.phases if phase.steps is not None]
        return sum(known) if known and len(known) == len(self.phases) else None


def find_stored_runs(work: Path) -> list[StoredRun]:
    """Return all runs in a work folder by name and fingerprint, the twins last; links are not followed."""
    runs = work / "runs"
    names = [(path.name, path) for path in _folders(runs) if path.name != SMOKE.rstrip("/")]
    names += [(f"{SMOKE}{path.name}", path) for path in _folders(runs / SMOKE)]
    return [
        StoredRun(name, path.name, path, work)
        for name, folder in names
        if re.fullmatch(RUN_NAME, name)
        for path in _folders(folder)
        if KEY.fullmatch(path.name)
    ]


def _folders(folder: Path) -> list[Path]:
    """Return the sorted folders in a folder; none where it is absent or a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def requested_runs(project: Project, name: str) -> RequestedRuns:
    """Return the plans that a run's name asks for as the recipes are now."""
    run = RunName.parse(name)
    absent_machine = run.machine is not None and run.machine not in project.machine_names()
    if absent_machine or run.recipe not in project.names():
        return RequestedRuns((), exists=False)
    try:
        plan = project.plan(name)
        plans = list(getattr(plan, "runs", None) or [plan])
        for each in plans:
            _ = each.fingerprint  # it may read the files of a local folder
    except (RelmError, OSError) as error:
        return RequestedRuns((), exists=True, fault=shorten_error(error) if isinstance(error, RelmError) else str(error))
    return RequestedRuns(plans, exists=True)


def list_runs(project: Project, work: Path, results: Path, live: Sequence[LiveStep]) -> list[ListedRun]:
    """Return all runs of a work folder beside their recipes, by name; requested ones first, by their seeds, then the newest."""
    published = find_published(project, results)
    known: dict[str, RequestedRuns] = {}
    found = []
    for run in find_stored_runs(work):
        if run.name not in known:
            known[run.name] = requested_runs(project, run.name)
        found.append(_describe(run, known[run.name], published, live))
    order = {run.run.name: number for number, run in enumerate(found)}
    return sorted(found, key=lambda each: (order[each.run.name], not each.is_requested, each.seed or 0, -each.run.disk.changed))


def _describe(run: StoredRun, requested: RequestedRuns, published: set[tuple[str, str]], live: Sequence[LiveStep]) -> ListedRun:
    is_requested = requested.has(run)
    differences = None
    if requested.plans and not is_requested and run.resolved is not None:
        nearest = [differing_keys(run.resolved, resolve(plan)) for plan in requested.plans]
        differences = [each for each in min(nearest, key=len) if each.is_meaning]
    phases = run.phases(steps_of(run, requested))
    return ListedRun(
        run, requested, is_requested, differences, phases, _state(run, requested.plan_of(run), phases, published, live)
    )


def steps_of(run: StoredRun, requested: RequestedRuns) -> dict[str, int]:
    """Return phase -> its steps, as recorded with the run, or as its recipe has them now; {} if neither is known."""
    if run.resolved is not None:
        pretrain = run.resolved["recipe"].get("pretrain")
        return {name: phase["steps"] for name, phase in pretrain.items()} if isinstance(pretrain, dict) else {}
    plan = next((plan for plan in requested.plans if plan.fingerprint == run.fingerprint), None)
    return {name: phase.steps for name, phase in plan.recipe.pretrain.items()} if plan else {}


def _state(
    run: StoredRun,
    plan: Plan | None,
    phases: Sequence[PhaseProgress],
    published: set[tuple[str, str]],
    live: Sequence[LiveStep],
) -> str:
    if run.locked_phase is not None or any(step.paths_in(run.folder) for step in live):
        return RUNNING
    if (run.name, run.fingerprint) in published:
        return PUBLISHED
    if run.failure is not None:
        return FAILED
    # The verdict on several seeds is in the folder of the first.
    if plan is None:
        is_judged = bool(newest_first(run.folder, VERIFY, "verify.json"))
    else:
        is_judged = all(path.is_file() for path in (plan.evaluations().values() if plan.number else [plan.verdict()]))
    return FINISHED if run.is_trained(phases) and is_judged else STOPPED


def find_published(project: Project, results: Path) -> set[tuple[str, str]]:
    """Return (name in `work/runs`, fingerprint) of every published run, those of a recipe's other seeds included."""
    found = set()
    for path in iterate_published(results, "recipe.json"):
        content = read_object(path)
        judged = read_object(path.with_name("verify.json")).get("runs")
        stated = [content, *(each for each in judged if isinstance(each, dict))] if isinstance(judged, list) else [content]
        fingerprints = [value for each in stated if isinstance(value := each.get("fingerprint"), str)]
        if isinstance(name := content.get("name"), str):
            names = {name, *(plan.run_name for plan in requested_runs(project, name).plans)}
            found |= {(each, fingerprint) for each in names for fingerprint in fingerprints}
    return found


def iterate_published(results: Path, file: str) -> Iterator[Path]:
    """Yield the files of a name in the published folders, `results/NAME` and at most two folders deeper, also behind links."""
    for depth in ("*", "*/*", "*/*/*"):
        yield from sorted(results.glob(f"{depth}/{file}"))


def read_progress(folder: Path, steps: int | None) -> PhaseProgress:
    """Return the progress of a phase from its folder."""
    lines = read_newest_lines(folder / LOG)
    last = lines[-1] if lines else {}
    rate = None
    if len(lines) > 1 and (passed := last["step"] - lines[-2]["step"]) > 0:
        seconds = last.get("seconds", 0) - lines[-2].get("seconds", 0)
        rate = seconds / passed if seconds > 0 else None
    return PhaseProgress(folder.name, last, rate, steps)


def read_newest_lines(path: Path) -> list[dict[str, Any]]:
    """Return the newest complete lines of a train.jsonl that have a step; [] where there is none or no such file."""
    try:
        require_regular_file(path)
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - 16384)
            file.seek(start)
            lines = file.read().split(b"\n")[:-1]
    except (OSError, RelmError):
        return []
    found = []
    for line in lines[1:] if start else lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("step"), int) and _has_figures(content):
            found.append(content)
    return found


def _has_figures(line: Mapping[str, Any]) -> bool:
    """Return whether what is shown of a line is of the kind that training writes, which a damaged file need not have."""
    numbers = all(isinstance(line.get(key, 0), int | float) for key in ("loss", "seconds", "tokens_per_second"))
    curve = line.get(CURVE, {"verdict": ""})
    return numbers and isinstance(curve, dict) and isinstance(curve.get("verdict"), str)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} where it is absent or damaged, since a list of runs shows the others still."""
    try:
        content = read_sealed(path, "the others are shown")
    except (RelmError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_as_made(path: Path) -> bool:
    """Return whether a file is the one that its record lists, or has no record."""
    try:
        require_as_made(path)
    except (RelmError, OSError):
        return False
    return True


def measure_folder(folder: Path) -> DiskUse:
    """Return the bytes on the disk and the last change of a folder's files; a link counts as itself."""
    seen: set[tuple[int, int]] = set()
    size, changed = 0, 0.0
    for inside, _, files in os.walk(folder):
        for name in files:
            try:
                status = os.lstat(os.path.join(inside, name))
            except FileNotFoundError:  # a step renamed it meanwhile
                continue
            changed = max(changed, status.st_mtime)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                size += status.st_blocks * 512
    return DiskUse(size, changed or folder.stat().st_mtime)


def _read_last_message(log: Path) -> tuple[bool, str]:
    """Return whether the last message of a step's log is an error, and its first line."""
    try:
        messages = _LAST_MESSAGE.findall(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False, ""
    return (bool(messages[-1][0]), messages[-1][1]) if messages else (False, "")
