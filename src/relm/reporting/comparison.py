"""Two recipes, runs or published results compared: their keys, their figures with intervals, their logs."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.plan.published_files import find_changed
from relm.recipes.evaluation.expectations import Noise
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.resolved import KeyDifference, differing_keys, resolve
from relm.recipes.run_folder import MACHINES
from relm.recipes.run_name import RunName
from relm.reporting.check import require_as_published
from relm.reporting.equivalence import MeanDifference, Spread
from relm.reporting.run_record import RunRecord, find_runs, read_object

# A 95 % interval of a mean over many items, which is nearly normal.
NORMAL = 1.959964
# Names under which evaluations state the standard error of a figure.
STANDARD_ERRORS = ("{}_standard_error", "{}_stderr")
# Parts of a protocol that are prose, or notes that older results lack, or say where and on what it ran, which changes rounding
# alone.
NOT_PROTOCOL = frozenset({"in_words", "near_ties", "tie_split", "scored_as_text", MACHINES})


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    label: str
    resolved: Mapping[str, Any] | None
    """The resolved recipe; None: it was not recorded."""
    evaluations: Mapping[str, Mapping[str, Any]]
    """Evaluation -> the content of its file; empty for a recipe that has not run."""


class FigureDifference(NamedTuple):
    """A figure on both sides; a figure that one side lacks has None there."""

    task: str
    figure: str
    first: float | None
    second: float | None
    not_comparable: str | None = None
    """The reason why the two say nothing about each other."""
    interval: tuple[float, float] | None = None
    """95 % interval of second - first, by the standard errors that both evaluations state."""
    seed_half_width: float | None = None
    """Half of the interval in which two seeds of one recipe differ 95 % of the time, where the recipe states its noise."""

    @property
    def difference(self) -> float | None:
        """Second - first; None where there is nothing to subtract."""
        if self.first is None or self.second is None or self.not_comparable:
            return None
        return self.second - self.first

    @property
    def note(self) -> str:
        """The interval of the difference, how far seeds differ, or the reason why there is no difference."""
        if self.not_comparable:
            return f"not comparable: {self.not_comparable}"
        interval = [] if self.interval is None else ["95 % interval {:+.3g} to {:+.3g}".format(*self.interval)]
        seeds = [] if self.seed_half_width is None else [f"seeds ±{self.seed_half_width:.3g}"]
        return ", ".join([*interval, *seeds])


@dataclass(frozen=True)
class RunComparison:
    """Everything in which two sides differ."""

    first: Side
    second: Side
    keys: Sequence[KeyDifference] | None
    """None: a recipe was not recorded."""
    figures: Sequence[FigureDifference]


def compare(project: Project, first: str, second: str) -> RunComparison:
    """Return everything in which two sides differ that a user named, as `find_side` takes them."""
    work = work_folder()
    return compare_sides(find_side(project, work, first), find_side(project, work, second))


def find_side(project: Project, work: Path, given: str) -> Side:
    """Return the recipe, run or published folder that a user named.

    Args:
        given: NAME, NAME/FINGERPRINT, FINGERPRINT, or a folder in `results` or of a run.
    """
    folder = Path(given)
    if (folder / "recipe.json").is_file():
        return _read_published(folder)
    run = _find_run(work, given)
    if run is not None:
        return Side(f"{run.name}/{run.fingerprint}", run.resolved, run.evaluations)
    name = re.sub(r"^(\./)?(results/|recipes/)?|(\.yaml)?/*$", "", given)
    if RunName.parse(name).recipe in project.names():
        plan = project.plan(name)
        run = RunRecord(plan.run_name, plan.fingerprint, plan.run_folder, work)
        return Side(name, resolve(plan), run.evaluations)
    known = [*project.names(), *(f"{run.name}/{run.fingerprint}" for run in find_runs(work))]
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`relm list` shows the recipes, `relm runs` the runs"
    raise RelmError(f"{given}: no recipe, no run NAME/FINGERPRINT and no folder with recipe.json; {hint}")


def _find_run(work: Path, given: str) -> RunRecord | None:
    """Return the stored run of a folder, of NAME/FINGERPRINT, or of the beginning of one fingerprint."""
    runs = find_runs(work)
    path = Path(given).resolve()
    named = [run for run in runs if f"{run.name}/{run.fingerprint}" == given or run.folder.resolve() == path]
    if not named and re.fullmatch("[0-9a-f]{4,12}", given):
        named = [run for run in runs if run.fingerprint.startswith(given)]
        if len(named) > 1:
            found = ", ".join(f"{run.name}/{run.fingerprint}" for run in named)
            raise RelmError(f"{given}: {len(named)} runs begin with it: {found}; name one of them")
    return named[0] if named else None


def _read_published(folder: Path) -> Side:
    """Return a published folder, in which an evaluation that was changed since is empty."""
    require_as_published(folder, ["recipe.json"])
    resolved = read_object(folder / "recipe.json")
    if not isinstance(resolved.get("recipe"), dict):
        raise RelmError(f"{folder / 'recipe.json'}: not what `relm report` wrote; publish the run again")
    files = {path.relative_to(folder).as_posix(): path for path in sorted((folder / "eval").glob("*.json"))}
    changed = {found.name for found in find_changed(folder, files)}
    evaluations = {path.stem: {} if name in changed else read_object(path) for name, path in files.items()}
    return Side(str(folder), resolved, evaluations)


def compare_sides(first: Side, second: Side) -> RunComparison:
    """Return the keys and figures of two sides."""
    keys = None
    if first.resolved is not None and second.resolved is not None:
        keys = differing_keys(first.resolved, second.resolved)
    tasks = dict.fromkeys((*first.evaluations, *second.evaluations))
    figures = [figure for task in tasks for figure in _compare_task(task, first, second)]
    return RunComparison(first, second, keys, figures)


def _explain_absence(task: str, first: Side, second: Side) -> str:
    """Return the reason why one side has no figures of an evaluation: it lacks the file, or its file is damaged."""
    for letter, side in (("A", first), ("B", second)):
        if side.evaluations.get(task) == {}:
            return f"{letter}'s file is damaged"
    return f"only {'A' if task in first.evaluations else 'B'} has it"


def _compare_task(task: str, first: Side, second: Side) -> Iterator[FigureDifference]:
    """Yield the figures of one evaluation; standard errors are in the interval of their figure."""
    contents = first.evaluations.get(task, {}), second.evaluations.get(task, {})
    one, other = (_figures(content) for content in contents)
    reason = find_other_protocol(*contents) if all(contents) else _explain_absence(task, first, second)
    for key in dict.fromkeys((*one, *other)):
        if _is_standard_error(key, one) or _is_standard_error(key, other):
            continue
        a, b = one.get(key), other.get(key)
        if isinstance(a, int) and a == b:  # a count of what was scored
            continue
        if reason is not None or a is None or b is None:
            yield FigureDifference(task, key, a, b, not_comparable=reason or f"only {'A' if b is None else 'B'} has it")
            continue
        errors = _standard_error(key, one), _standard_error(key, other)
        half = None if None in errors else NORMAL * math.hypot(*(error or 0.0 for error in errors))
        interval = None if half is None else (b - a - half, b - a + half)
        seeds = _seed_half_width(f"{task}.{key}", first, second)
        yield FigureDifference(task, key, a, b, interval=interval, seed_half_width=seeds)


def _figures(content: Mapping[str, Any]) -> dict[str, float]:
    found = content.get("figures")
    numbers = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in numbers if isinstance(value, int | float) and not isinstance(value, bool)}


def _standard_error(key: str, figures: Mapping[str, float]) -> float | None:
    return next((figures[name] for form in STANDARD_ERRORS if (name := form.format(key)) in figures), None)


def _is_standard_error(key: str, figures: Mapping[str, float]) -> bool:
    return any(key == form.format(figure) for form in STANDARD_ERRORS for figure in figures)


def find_other_protocol(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the reason why the figures of two evaluations are not comparable: the keys of their protocols that differ."""
    one, other = _protocol(first), _protocol(second)
    keys = [key for key in dict.fromkeys((*one, *other)) if key not in NOT_PROTOCOL and one.get(key) != other.get(key)]
    return f"other protocols: {', '.join(keys)}" if keys else None


def _protocol(content: Mapping[str, Any]) -> dict[str, Any]:
    found = content.get("protocol")
    return found if isinstance(found, dict) else {}


def _seed_half_width(metric: str, first: Side, second: Side) -> float | None:
    """Return half of the 95 % interval of the difference of two seeds, if a recipe states the noise of a figure."""
    for side in (first, second):
        for row in (side.resolved or {}).get("recipe", {}).get("expect") or ():
            if row.get("metric") == metric and row.get("noise"):
                noise = Noise.model_validate(row["noise"])
                return MeanDifference(Spread(noise.standard_deviation, noise.runs - 1), our_runs=1, published_runs=1).half_width
    return None
