"""`results/papers/KEY`: the figures of a paper with ours, and those that are missing."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file, write_json
from relm.errors import RelmError
from relm.formatting import format_duration
from relm.plan.products import SEEDS, published_name
from relm.recipes.controls import differences_table
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan
from relm.recipes.project import Project, shorten_error
from relm.recipes.recipe import Paper
from relm.recipes.run_folder import DIFFERENCES, LOG, PAPER_FILES, TABLE
from relm.reporting.check import require_as_published
from relm.reporting.findings import headline_of
from relm.reporting.pages import template
from relm.reporting.publish import publish
from relm.reporting.report import scale
from relm.reporting.result_files import read_verdict
from relm.reporting.training_log import read_log
from relm.reporting.verify import overall

MISSING = "missing"
VERDICT = "verify.json"


@dataclass(frozen=True)
class PaperRow:
    """One figure of the paper, and ours."""

    metric: str
    place: str
    published: float
    tolerance: float
    ours: float | None
    """The mean over the seeds; None: missing."""
    runs: int
    """The number of seeds."""
    interval: tuple[float, float] | None
    """The 95 % interval of the difference."""
    verdict: str
    """As in verify.json, or `missing`."""
    sentence: str
    drawn: Mapping[str, Any]
    """The row of verify.json with the positions of its drawing; empty: missing."""


@dataclass(frozen=True)
class PaperRun:
    """One recipe of the paper."""

    name: str
    title: str
    state: str
    """Empty for a published run; otherwise why there is none."""
    seconds: float | None
    """The time of training of all seeds; None: not known."""
    machine: str
    rows: list[PaperRow]

    @property
    def time(self) -> str:
        """The time of training as text."""
        return "–" if self.seconds is None else format_duration(self.seconds)


def write_paper(project: Project, key: str, folder: Path) -> str:
    """Write the page of a paper, a table in Markdown and the same as JSON."""
    paper, runs = read_paper(project, key)
    rows = [row for run in runs for row in run.rows]
    headline, tone, summary = describe_paper(rows)
    differences = None
    with contextlib.suppress(RelmError):  # one of the recipes with a control has faults
        differences = differences_table(project, key)
    differences = differences if differences is not None and differences.is_file() else None
    facts = {"paper": paper, "runs": runs, "headline": headline, "tone": tone, "summary": summary, "missing": MISSING}
    facts |= {"differences": differences.read_text(encoding="utf-8") if differences else ""}
    made = {name: work_folder() / "papers" / key / name for name in PAPER_FILES}
    for name in ("index.html", "README.md"):
        with atomic_file(made[name], "w") as file:
            file.write(template("paper.html" if name == "index.html" else "paper.md").render(**facts))
    table = [asdict(run) for run in runs]
    for run in table:
        for row in run["rows"]:
            del row["drawn"]
    stated = {DIFFERENCES: differences.parent.name if differences else None}
    write_json(made[TABLE], {"paper": paper.model_dump(mode="json"), "summary": summary, "runs": table, **stated})
    publish(made | ({differences.name: differences} if differences else {}), folder)
    return f"{folder}: {summary}"


def read_paper(project: Project, key: str) -> tuple[Paper, list[PaperRun]]:
    """Return a paper and its runs, published or not; of a recipe with faults, the fault."""
    paper: Paper | None = None
    runs = []
    for name in (name for name in project.names() if _names_paper(project, name, key)):
        try:
            plan = project.plan(name)
        except RelmError as error:
            runs.append(PaperRun(name, name, f"the recipe has faults: {shorten_error(error)}", None, "", []))
            continue
        paper = paper or plan.recipe.paper
        runs.append(_read_run(plan))
    if paper is None:
        raise RelmError(f"no recipe names a paper with the key {key!r}; `relm list` shows the papers")
    return paper, runs


def _names_paper(project: Project, name: str, key: str) -> bool:
    """Return True if a recipe, even one with faults, names the paper."""
    try:
        return project.paper_and_control(name)[0] == key
    except RelmError:
        return False


def _read_run(plan: Plan) -> PaperRun:
    """Return a run with its verdict, if it is published as its recipe is now."""
    state, machine = _find_state(plan), str(plan.recipe.run.machine or plan.recipe.run.device)
    verdict = {} if state else read_verdict(plan.results / VERDICT)
    judged = {(row["metric"], row["place"]): row for row in verdict.get("rows", [])}
    count = len(verdict.get("runs", [None]))
    rows = []
    for metric, place, value, tolerance in _list_comparisons(plan):
        row = judged.get((metric, place))
        if row is None:
            why = state or "the published verdict is of an earlier version of `expect`"
            missing: tuple[Any, ...] = None, 0, None, MISSING, f"{why[0].upper()}{why[1:]}.", {}
            rows.append(PaperRow(metric, place, value, tolerance, *missing))
            continue
        interval = tuple(row["interval"]) if "interval" in row else None
        found = row["ours"], count, interval, row["verdict"], row["sentence"], row | scale(row)
        rows.append(PaperRow(row["metric"], row["place"], row["published"], row["tolerance"], *found))
    return PaperRun(plan.name, plan.recipe.title, state, None if state else find_training_seconds(plan), machine, rows)


def _list_comparisons(plan: Plan) -> Iterator[tuple[str, str, float, float]]:
    """Yield metric, place, value and tolerance of each row: a published figure, or the mean of its original's program."""
    for row in plan.recipe.expect:
        yield row.metric, row.place, row.value, row.tolerance
        if row.reference_runs is not None:
            runs = plan.reference_runs[row.reference_runs].content
            yield row.metric, runs.place, runs.mean, row.tolerance


def _find_state(plan: Plan) -> str:
    """Return why a run has no verdict; empty if it has one."""
    if not (plan.results / VERDICT).is_file():
        return f"not run yet: snakemake {plan.results}"
    logs = (path for logs in _published_logs(plan) for path in logs.values())
    require_as_published(plan.results, [VERDICT, *(path.relative_to(plan.results).as_posix() for path in logs)])
    found = read_verdict(plan.results / VERDICT).get("fingerprint")
    if found != plan.fingerprint:
        return f"{plan.results} is of an earlier version of the recipe ({found}, now {plan.fingerprint})"
    return ""


def find_training_seconds(plan: Plan) -> float | None:
    """Return the time of training of all seeds, from the published logs; None where one is absent."""
    total = 0.0
    for logs in _published_logs(plan):
        seconds = read_log(logs).total_seconds if all(path.is_file() for path in logs.values()) else None
        if seconds is None:
            return None
        total += seconds
    return total


def _published_logs(plan: Plan) -> Iterator[dict[str, Path]]:
    """Yield phase -> the published log of each seed, which need not exist."""
    for run in plan.runs:
        folder = plan.results / SEEDS / str(run.recipe.seed) if run.number else plan.results
        yield {phase: folder / published_name(LOG, phase, plan.phases) for phase in plan.phases}


def describe_paper(rows: list[PaperRow]) -> tuple[str, str, str]:
    """Return the headline, its tone, and a sentence with the number of figures of each verdict."""
    reached = [row for row in rows if row.ours is not None]
    counted = "; ".join(f"{count} {verdict}" for verdict, count in Counter(row.verdict for row in rows).items())
    summary = f"{len(reached)} of {len(rows)} figures were measured here: {counted or 'none is stated in a recipe'}."
    if not reached:
        return "Nothing measured yet", "plain", summary
    drawn = [row.drawn for row in reached]
    return *headline_of(overall(drawn)[0], drawn), summary
