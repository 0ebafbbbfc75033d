"""A run compared with its published curve: on the report page, and in `relm status`."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relm.errors import RelmError
from relm.recipes.project import Project
from relm.reporting.curve import compare_with_curve
from relm.reporting.findings import gather
from relm.reporting.report import report_page
from relm.reporting.status import describe_progress
from relm.training.curve_watch import WITHIN, watched
from small_curves import made_run, write_made_curve

STEPS = 200
WATCHED = {"curve": "made", "band": {"basis": "Ten made runs.", "runs": 10}}


@pytest.fixture
def watched_recipe(recipe: Callable[..., dict[str, Any]], in_project: Path) -> dict[str, Any]:
    """A recipe that is watched against a curve in the project's folder."""
    write_made_curve(in_project / "recipes" / "curves" / "made.tsv")
    content = recipe(expect_curve=WATCHED)
    content["pretrain"]["main"]["steps"] = STEPS
    return content


def test_the_page_draws_our_curve_over_the_published_one(
    watched_recipe: dict[str, Any], finished_run: Callable[..., Any]
) -> None:
    run = finished_run(watched_recipe, rows=lambda phase: made_run(101))
    findings = gather(run.plan, run.verify, run.evaluations)
    page = report_page(findings)
    assert "Against the published curve <code>made</code>" in page
    assert '<span class="chip good">within the band</span>' in page
    assert f"Phase main: {WITHIN}." in page
    assert "nowhere at 0000000, none (MIT)" in page
    assert "Band, from 10 runs: Ten made runs. Stated rate of false alarms: 1 % of runs." in page
    found = compare_with_curve(run.plan, findings.logs)
    assert found is not None
    assert len(found.drawn.steps) == STEPS
    assert (found.drawn.steps[0], found.drawn.steps[-1]) == (1.0, 190.5)  # the middle of 181 to 200


def test_the_page_names_the_step_at_which_a_run_left_the_band(
    watched_recipe: dict[str, Any], finished_run: Callable[..., Any]
) -> None:
    run = finished_run(watched_recipe, rows=lambda phase: made_run(101, factor=2.0))
    page = report_page(gather(run.plan, run.verify, run.evaluations))
    assert '<span class="chip bad">left the band</span>' in page
    assert "times the learning rate. The dashed line" in page


def test_status_shows_the_verdict_of_the_newest_line(watched_recipe: dict[str, Any], finished_run: Callable[..., Any]) -> None:
    lines = made_run(101, factor=2.0)

    def judged(phase: str) -> list[dict[str, Any]]:
        watch = watched(plan.recipe.expect_curve, plan.curve, [], [int(line["step"]) for line in lines])
        return [{**line, **watch.judge(line)} for line in lines]

    plan = finished_run(watched_recipe, rows=lambda phase: made_run(101)).plan
    log = plan.run_folder / "main" / "train.jsonl"
    assert "published" not in describe_progress(plan)  # the lines have no key curve
    log.write_text("".join(f"{json.dumps(line)}\n" for line in judged("main")))
    assert ", left the band at step " in describe_progress(plan)


def test_a_curve_is_no_part_of_the_fingerprint(watched_recipe: dict[str, Any], finished_run: Callable[..., Any]) -> None:
    run = finished_run(watched_recipe, rows=lambda phase: made_run(101))
    Path("recipes/tiny.yaml").write_text(Path("recipes/tiny.yaml").read_text().partition("expect_curve:")[0])
    without = Project().plan("tiny")
    assert without.recipe.expect_curve is None
    assert without.fingerprint == run.plan.fingerprint


def test_an_unknown_curve_is_reported_with_the_nearest(
    watched_recipe: dict[str, Any], finished_run: Callable[..., Any]
) -> None:
    watched_recipe["expect_curve"] = WATCHED | {"curve": "mode"}
    with pytest.raises(RelmError, match=r"tiny.yaml: expect_curve.curve: there is no curve 'mode' .*did you mean made\?"):
        finished_run(watched_recipe)


def test_a_smoke_twin_is_not_watched(watched_recipe: dict[str, Any], finished_run: Callable[..., Any]) -> None:
    finished_run(watched_recipe, rows=lambda phase: made_run(101))
    assert Project().plan("smoke/tiny").recipe.expect_curve is None


def test_the_comparison_needs_no_torch() -> None:
    code = "import sys; import relm.reporting.curve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
