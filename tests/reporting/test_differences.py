"""Differences between a recipe and its control are paired by seed, with Student's interval."""

from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from relm.artifact import write_json
from relm.cli import main
from relm.errors import RelmError
from relm.recipes.controls import plan_controlled
from relm.recipes.project import Project
from relm.reporting.differences import format_row, pair_figures, paired_interval, write_differences
from small_project import CHECKOUT

FIGURES = ("masked_nats_per_token", "next_sentence_nats", "nats_per_token", "validation_loss")
CONTROL, CHANGED = (2.0, 2.5, 2.2), (2.3, 2.7, 2.6)


def test_the_interval_is_that_of_the_paired_t_test() -> None:
    expected = ttest_rel(CHANGED, CONTROL).confidence_interval(0.95)
    found = paired_interval([changed - control for control, changed in zip(CONTROL, CHANGED, strict=True)])
    assert found == pytest.approx((expected.low, expected.high))


def test_runs_are_paired_by_seed_and_others_are_left_out() -> None:
    def run(value: float) -> dict:
        return {"held_out": {"figures": {"nats_per_token": value}}}

    control, changed = {1: run(2.0), 2: run(2.5), 4: run(9.0)}, {2: run(2.7), 1: run(2.3), 3: run(0.0)}
    assert pair_figures("held_out.nats_per_token", control, changed) == [(2.0, 2.3), (2.5, 2.7)]
    assert pair_figures("held_out.nats_per_token", control, {3: run(0.0)}) == []
    assert pair_figures("masked_lm.loss", control, changed) == []


def test_the_table_says_where_nothing_is_seen_or_no_interval_exists() -> None:
    def row(*changed: float) -> str:
        return format_row("large", "x.y", list(zip(CONTROL, changed, strict=False)))

    assert row(*CHANGED) == "| large | x.y | 2.233 | 2.533 | +0.300, +0.052 to +0.548 | +0.300, +0.200, +0.400 |\n"
    assert "includes 0" in row(2.3, 2.5, 2.1)
    assert "one seed, so no interval" in row(2.3)


def write_figures(project: Project, change: float) -> None:
    """Write figures of all runs of the paper on defects: those with a control are worse by `change`, the nth by 0.1 n more."""
    for plan, control in plan_controlled(project, "defects").values():
        for run in (*plan.runs, *control.runs):
            worse = (run.recipe.control is not None) * (change + 0.1 * run.number)
            for task, path in run.evaluations().items():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {"task": task, "figures": dict.fromkeys(FIGURES, 1 + worse)})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    return Project(CHECKOUT)


def test_the_table_of_a_paper_has_a_row_for_each_figure(project: Project, tmp_path: Path) -> None:
    write_figures(project, 0.5)
    sentence = write_differences("defects", plan_controlled(project, "defects"), tmp_path / "differences.md")
    table = (tmp_path / "differences.md").read_text()
    rows = table.splitlines()[2:]
    assert sentence.startswith("compared 6 recipes with their controls, 7 figures")
    assert len(rows) == 7
    causal = next(row for row in rows if "held_out.nats_per_token" in row)
    assert causal.startswith("| a learning rate that moves once in eight updates")
    assert "| 1.000 | 1.600 | +0.600, +0.352 to +0.848 | +0.500, +0.600, +0.700 |" in causal


def test_a_figure_that_nothing_measured_is_named(project: Project, tmp_path: Path) -> None:
    write_figures(project, 0.5)
    pairs = plan_controlled(project, "defects")
    for path in pairs["defects_rate_in_eighths"][0].runs[0].run_folder.parent.rglob("held_out.json"):
        write_json(path, {"task": "held_out", "figures": {}})
    with pytest.raises(RelmError, match=r"recipe defects_rate_in_eighths: .* no seed has held_out.nats_per_token both here"):
        write_differences("defects", pairs, tmp_path / "differences.md")


def test_a_paper_without_a_control_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["differences", "nanogpt", "--output", str(tmp_path / "differences.md")])
    assert "no recipe of paper nanogpt has a control" in capsys.readouterr().err
    assert not (tmp_path / "differences.md").exists()


def test_a_control_is_of_the_same_paper(tmp_path: Path) -> None:
    folder = tmp_path / "project" / "recipes"
    folder.mkdir(parents=True)
    for part in (CHECKOUT / "recipes").iterdir():
        (folder / part.name).symlink_to(part)
    (folder / "mine.yaml").write_text(
        "extends: quickstart\npaper: {key: mine, title: mine, url: 'https://example.org'}\n"
        "control: {recipe: shakespeare_char, change: all, metrics: [held_out.nats_per_token]}\n"
    )
    with pytest.raises(RelmError, match=r"control.recipe: expected a recipe of paper mine, found shakespeare_char"):
        plan_controlled(Project(tmp_path / "project"), "mine")
