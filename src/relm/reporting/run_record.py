"""The record of a run, read from its files: state, step, figures, size, keys that differ from its recipe. Imports no torch.

A damaged or absent file leaves a gap in one run's record; the other runs are still listed.
"""

import contextlib
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
from relm.formatting import format_duration
from relm.json_shapes import COUNT, NUMBER, TEXT, find_misfit
from relm.provenance.step_record import require_as_made
from relm.recipes.identity import KEY
from relm.recipes.plan import TRAINED, Plan
from relm.recipes.project import Project, shorten_error
from relm.recipes.resolved import KeyDifference, differing_keys, resolve
from relm.recipes.run_folder import CURVE, LOG, RESOLVED, VERIFY, WEIGHTS, newest_first
from relm.recipes.run_name import RUN_NAME, SMOKE, RunName
from relm.reporting.live_steps import LiveStep, is_locked, list_live_steps

RUNNING, STOPPED, FINISHED, FAILED, PUBLISHED = "running", "stopped", "finished", "failed", "published"
# The part of a line of train.jsonl that is shown.
_SHOWN = {"step": COUNT, "loss?": NUMBER, "seconds?": NUMBER, "tokens_per_second?": NUMBER, f"{CURVE}?": {"verdict": TEXT}}
# A line of a step's log: its time, and `relm STEP: ...` for an error or `STEP: ...` for the outcome.
_LAST_MESSAGE = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (relm \S+: )?(.*)", re.MULTILINE)
# First words of a step that was stopped on request; the same command resumes it.
_STOPPED = ("stopped by ", "interrupted")


class PhaseProgress(NamedTuple):
    """The newest complete line of a phase's train.jsonl, and the length of the phase."""

    name: str
    last: Mapping[str, Any]
    """{} before the first line."""
    seconds_per_step: float | None
    """Between the two newest lines."""
    steps: int | None
    """Steps of the phase; None: unknown."""

    @property
    def step(self) -> int:
        """The step reached."""
        return int(self.last.get("step", 0))

    def describe(self, is_running: bool = False) -> str:
        """Return step, loss and the verdict on the curve; for a running phase also the rate and the time left.

        >>> line = {"step": 50, "loss": 3.91, "tokens_per_second": 13884.2}
        >>> PhaseProgress("main", line, 0.5, 200).describe(is_running=True)
        'step 50 of 200, 25 %, loss 3.910, 13,884 tokens/s, about 1 min 15 s left'
        """
        if not self.last:
            return "step 0, before the first line of its log"
        parts = [f"step {self.step:,} of {self.steps:,}" if self.steps else f"step {self.step:,}"]
        if is_running and self.steps:
            parts.append(f"{100 * self.step // self.steps} %")
        if "loss" in self.last:
            parts.append(f"loss {self.last['loss']:.3f}")
        if is_running and "tokens_per_second" in self.last:
            parts.append(f"{self.last['tokens_per_second']:,.0f} tokens/s")
        if is_running and self.seconds_per_step is not None and self.steps:
            parts.append(f"about {format_duration(max(0, self.steps - self.step) * self.seconds_per_step)} left")
        return ", ".join([*parts, *([self.last[CURVE]["verdict"]] if CURVE in self.last else [])])


class DiskUse(NamedTuple):
    """A file, or the files of a folder; a link counts as itself."""

    size: int
    """Bytes on the disk; a file with several names counts once."""
    freed: int
    """Bytes that a removal frees; a file with another hard link elsewhere does not count."""
    changed: float
    """The time of the last change, in seconds since the epoch."""


class Requested(NamedTuple):
    """The plans of a run name as the recipes are now; several if the recipe has several seeds."""

    plans: Sequence[Plan] = ()
    exists: bool = False
    """False: unknown recipe or machine."""
    fault: str | None = None
    """The fault that prevents a plan."""


@dataclass(frozen=True)
class RunRecord:
    """A folder `work/runs/NAME/FINGERPRINT`, and the present plans of its recipe."""

    name: str
    """As in `results/NAME`."""
    fingerprint: str
    folder: Path
    work: Path
    requested: Requested = Requested()  # noqa: RUF009 - immutable
    is_published: bool = False
    """True if a folder in `results/` names it."""
    live: Sequence[LiveStep] = ()
    """The steps that run on this machine."""

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the run; None: no present recipe has its fingerprint."""
        found = (each for each in self.requested.plans if (each.run_name, each.fingerprint) == (self.name, self.fingerprint))
        return next(found, None)

    @property
    def is_old(self) -> bool:
        """True if no present recipe has the run's fingerprint; False while the recipe has faults."""
        return self.plan is None and self.requested.fault is None

    @property
    def seed(self) -> int | None:
        """The run's seed if its recipe has several; otherwise None."""
        return self.plan.recipe.seed if self.plan is not None and len(self.requested.plans) > 1 else None

    @cached_property
    def resolved(self) -> Mapping[str, Any] | None:
        """The recipe with which the run was trained or reported; None: not recorded."""
        for path in (self.folder / RESOLVED, *newest_first(self.folder, "report", "recipe.json")):
            content = read_object(path)
            if isinstance(content.get("recipe"), dict) and content.get("fingerprint") == self.fingerprint:
                return content
        return None

    @cached_property
    def differences(self) -> list[KeyDifference] | None:
        """Keys that differ from the recipe, this run's value first; None: the run is current, or cannot be compared."""
        if self.plan is not None or not self.requested.plans or self.resolved is None:
            return None
        nearest = min((differing_keys(self.resolved, resolve(plan)) for plan in self.requested.plans), key=len)
        return [each for each in nearest if each.is_meaning]

    @cached_property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Evaluation -> its figures, of the trained weights, without damaged or changed files."""
        newest: dict[str, Path] = {}
        for path in newest_first(self.folder, TRAINED, "*.json"):
            if not path.name.endswith(".record.json"):
                newest.setdefault(path.stem, path)
        found = dict[str, dict[str, Any]]()
        for task, path in sorted(newest.items()):
            with contextlib.suppress(RelmError, OSError):
                require_as_made(path)
                if isinstance(figures := read_object(path).get("figures"), dict):
                    found[task] = figures
        return found

    @cached_property
    def disk(self) -> DiskUse:
        """The size of its files and their last change."""
        return measure(self.folder)

    @property
    def locked_phase(self) -> str | None:
        """The phase that a trainer is working on; None: no trainer runs."""
        return next((lock.parent.name for lock in sorted(self.folder.glob("*/lock")) if is_locked(lock)), None)

    @cached_property
    def phases(self) -> list[PhaseProgress]:
        """The progress of each phase, from the recorded recipe, or the present one, or the folders."""
        if self.resolved is not None:
            pretrain = self.resolved["recipe"].get("pretrain")
            steps = {name: phase["steps"] for name, phase in pretrain.items()} if isinstance(pretrain, dict) else {}
        else:
            plan = next((plan for plan in self.requested.plans if plan.fingerprint == self.fingerprint), None)
            steps = {name: phase.steps for name, phase in plan.recipe.pretrain.items()} if plan else {}
        names = list(steps) or sorted({path.parent.name for path in self.folder.glob(f"*/{LOG}")})
        return [read_progress(self.folder / name, steps.get(name)) for name in names]

    @property
    def loss(self) -> float | None:
        """The newest logged loss; None before the first."""
        return next((phase.last["loss"] for phase in reversed(self.phases) if "loss" in phase.last), None)

    @property
    def step(self) -> int:
        """The steps reached, over all phases."""
        return sum(phase.step for phase in self.phases)

    @property
    def steps(self) -> int | None:
        """The steps of all phases; None: unknown."""
        known = [phase.steps for phase in self.phases if phase.steps is not None]
        return sum(known) if known and len(known) == len(self.phases) else None

    def has_model(self, phase: str) -> bool:
        """Return True if the model of a phase is finished."""
        return sidecar_of(self.folder / phase / "model" / WEIGHTS).is_file()

    @property
    def working(self) -> list[LiveStep]:
        """The processes whose commands name its files, oldest first."""
        return [step for step in self.live if step.works_in(self.folder)]

    @cached_property
    def state(self) -> str:
        """RUNNING, PUBLISHED, FAILED, FINISHED (trained and judged) or STOPPED."""
        if self.locked_phase is not None or self.working:
            return RUNNING
        if self.is_published:
            return PUBLISHED
        if self.failure is not None:
            return FAILED
        # The verdict on several seeds is in the first one's folder.
        if self.plan is None:
            is_judged = bool(newest_first(self.folder, VERIFY, "verify.json"))
        else:
            judged = self.plan.evaluations().values() if self.plan.number else [self.plan.verdict()]
            is_judged = all(path.is_file() for path in judged)
        is_trained = bool(self.phases) and all(self.has_model(phase.name) for phase in self.phases)
        return FINISHED if is_trained and is_judged else STOPPED

    @cached_property
    def failure(self) -> str | None:
        """The last message of a step's log if it is an error and not a request to stop; None: no step failed."""
        for log in sorted((self.work / "logs" / "runs" / self.name / self.fingerprint).rglob("*.log")):
            with contextlib.suppress(OSError):
                *_, (is_error, message) = [("", ""), *_LAST_MESSAGE.findall(log.read_text(encoding="utf-8", errors="replace"))]
                if is_error and not message.startswith(_STOPPED):
                    return str(message)
        return None


def find_runs(work: Path, projects: Sequence[Project] = ()) -> list[RunRecord]:
    """Return all runs in a work folder, the twins last, without following links; `projects` have the recipes."""
    runs = work / "runs"
    folders = [(path.name, path) for path in _folders(runs) if path.name != SMOKE.rstrip("/")]
    folders += [(f"{SMOKE}{path.name}", path) for path in _folders(runs / SMOKE)]
    published = set[tuple[str, str]]().union(*map(find_published, projects))
    live = list_live_steps() if projects else []
    return [
        RunRecord(name, path.name, path, work, requested, (name, path.name) in published, live)
        for name, folder in folders
        if re.fullmatch(RUN_NAME, name)
        for requested in [find_requested(projects, name)]
        for path in _folders(folder)
        if KEY.fullmatch(path.name)
    ]


def _folders(folder: Path) -> list[Path]:
    """Return the sorted folders in a folder; none if it is absent or a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def find_requested(projects: Sequence[Project], name: str) -> Requested:
    """Return the plans of a run name in the present recipes of some checkouts."""
    run, plans, known, fault = RunName.parse(name), [], False, None
    for project in projects:
        absent_machine = run.machine is not None and run.machine not in project.machine_names()
        if absent_machine or run.recipe not in project.names():
            continue
        known = True
        try:
            plan = project.plan(name)
            found = list(getattr(plan, "runs", None) or [plan])
            for each in found:
                _ = each.fingerprint  # it may read the files of a local folder
            plans += found
        except (RelmError, OSError) as error:
            fault = shorten_error(error)
    return Requested(plans, known, fault)


def find_published(project: Project) -> set[tuple[str, str]]:
    """Return (name in `work/runs`, fingerprint) of every published run, including other seeds."""
    found = set()
    for path in iterate_published(project, "recipe.json"):
        content = read_object(path)
        judged = read_object(path.with_name("verify.json")).get("runs")
        stated = [content, *(each for each in judged if isinstance(each, dict))] if isinstance(judged, list) else [content]
        fingerprints = [value for each in stated if isinstance(value := each.get("fingerprint"), str)]
        if isinstance(name := content.get("name"), str):
            names = {name, *(plan.run_name for plan in find_requested([project], name).plans)}
            found |= {(each, fingerprint) for each in names for fingerprint in fingerprints}
    return found


def iterate_published(project: Project, file: str) -> Iterator[Path]:
    """Yield the files of a name in `results/NAME` and up to two folders deeper, following links."""
    for depth in ("*", "*/*", "*/*/*"):
        yield from sorted((project.recipes.parent / "results").glob(f"{depth}/{file}"))


def read_progress(folder: Path, steps: int | None) -> PhaseProgress:
    """Return the progress of a phase from its folder."""
    lines = _read_newest_lines(folder / LOG)
    last = lines[-1] if lines else {}
    rate = None
    if len(lines) > 1 and (passed := last["step"] - lines[-2]["step"]) > 0:
        seconds = last.get("seconds", 0) - lines[-2].get("seconds", 0)
        rate = seconds / passed if seconds > 0 else None
    return PhaseProgress(folder.name, last, rate, steps)


def _read_newest_lines(path: Path) -> list[dict[str, Any]]:
    """Return the newest complete lines of a train.jsonl that have a step; [] without any."""
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
        if find_misfit(content, _SHOWN) is None:
            found.append(content)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if it is absent or damaged."""
    try:
        content = read_sealed(path, "the others are shown")
    except (RelmError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def measure(path: Path) -> DiskUse:
    """Return the disk use of a file or a folder, and its last change."""
    links, sizes = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    changed = 0.0
    for each in [path, *(Path(inside, name) for inside, _, files in os.walk(path) for name in files)]:
        try:
            status = os.lstat(each)
        except FileNotFoundError:  # a step renamed it meanwhile
            continue
        changed = max(changed, status.st_mtime)
        if each != path or not each.is_dir():
            key = status.st_dev, status.st_ino
            links[key] = links.get(key, status.st_nlink) - 1
            sizes[key] = status.st_blocks * 512
    return DiskUse(sum(sizes.values()), sum(sizes[key] for key, others in links.items() if not others), changed)
