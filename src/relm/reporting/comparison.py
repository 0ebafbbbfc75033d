"""`relm diff`: two recipes, runs or published results compared: their keys, and their figures with intervals."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.formatting import format_table
from relm.plan.published_files import find_changed
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.resolved import KeyDifference, differing_keys, resolve
from relm.recipes.run_folder import MACHINES
from relm.recipes.run_name import RunName
from relm.reporting.check import require_as_published
from relm.reporting.run_record import RunRecord, find_runs, read_object
from relm.reporting.runs_table import format_value, wrap_lines

# A 95 % interval of a mean over many items, which is nearly normal.
NORMAL = 1.959964
# Names under which evaluations state the standard error of a figure.
STANDARD_ERRORS = ("{}_standard_error", "{}_stderr")
# Parts of a protocol that are prose, or notes that older results lack, or say where and on what it ran, which changes rounding
# alone.
NOT_PROTOCOL = frozenset({"in_words", "near_ties", "tie_split", "scored_as_text", MACHINES})
LARGE = 10_000
"""From here on, figures are written without digits behind the point."""


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

    @property
    def difference(self) -> float | None:
        """Second - first; None where there is nothing to subtract."""
        if self.first is None or self.second is None or self.not_comparable:
            return None
        return self.second - self.first

    @property
    def note(self) -> str:
        """The interval of the difference, or the reason why there is no difference."""
        if self.not_comparable:
            return f"not comparable: {self.not_comparable}"
        return "" if self.interval is None else "95 % interval {:+.3g} to {:+.3g}".format(*self.interval)


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
    """Return what a user named: NAME, NAME/FINGERPRINT, FINGERPRINT, or a folder in `results` or of a run."""
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
        yield FigureDifference(task, key, a, b, interval=interval)


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


def describe_comparison(compared: RunComparison) -> str:
    """Return a comparison as text of a hundred columns: the keys, and the figures with their differences."""
    sides = [f"A  {compared.first.label}", f"B  {compared.second.label}"]
    return "\n".join([*sides, "", *_key_lines(compared), "", *_figure_lines(compared)])


def _key_lines(compared: RunComparison) -> Iterator[str]:
    if compared.keys is None:
        yield "keys: the recipe of one side was not recorded, so they cannot be compared"
        return
    meaning = [each for each in compared.keys if each.is_meaning]
    others = [each for each in compared.keys if not each.is_meaning]
    if not meaning:
        yield "keys: none differs that the fingerprint depends on"
    for title, differences in (("keys of the fingerprint:", meaning), ("other keys:", others)):
        if differences:
            yield title
        for each in differences:
            yield from wrap_lines(f"{each.key}: {format_value(each.first)} | {format_value(each.second)}", indent="  ")


def _figure_lines(compared: RunComparison) -> Iterator[str]:
    if not compared.figures:
        yield "figures: neither side has any that differ"
        return
    cells = [
        [f"  {each.task}.{each.figure}", *map(_format_figure, (each.first, each.second)), _format_difference(each.difference)]
        for each in compared.figures
    ]
    header, *rows = format_table([["figures:", "A", "B", "B - A"], *cells], "<>>>")
    yield header
    for number, (each, row) in enumerate(zip(compared.figures, rows, strict=True), 1):
        yield row
        following = next((other.not_comparable for other in compared.figures[number:] if other.task == each.task), None)
        if each.note and (each.not_comparable is None or each.not_comparable != following):
            yield from wrap_lines(each.note, indent="      ")


def _format_figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or LARGE <= abs(value) < 1e15 else f"{value:.5g}"


def _format_difference(difference: float | None) -> str:
    if difference is None:
        return ""
    return f"{difference:+,.0f}" if LARGE <= abs(difference) < 1e15 else f"{difference:+.4g}"
