"""Files of published curves, and the section `expect_curve`."""

import math
from pathlib import Path
from typing import Any

import pytest

from relm.errors import RelmError
from relm.recipes.curves import FACTS, ExpectedCurve, load_curve, require_band
from relm.recipes.project import Project
from relm.recipes.section import validate
from small_curves import HEAD, write_curve
from small_project import CHECKOUT

COLUMNS: dict[str, list[Any]] = {"loss": [4.0, 3.5, 3.0], "learning_rate": ["1e-4", "0.00020", "0.0003"]}


def test_a_curve_is_read_with_its_statements(tmp_path: Path) -> None:
    path = write_curve(tmp_path / "small.tsv", {"step": [1, 2, 10], **COLUMNS, "validation_loss": ["", "3.6", ""]})
    curve = load_curve(path)
    assert (curve.name, curve.steps, curve.columns["loss"]) == ("small", [1, 2, 10], [4.0, 3.5, 3.0])
    assert curve.facts["title"] == "A run for tests"
    assert curve.facts["licence"] == "MIT"
    assert math.isnan(curve.columns["validation_loss"][0])
    assert curve.rate_rounding == 5e-06


def test_repetitions_stand_in_separate_columns(tmp_path: Path) -> None:
    names = [f"loss_{number}" for number in range(1, 12)]
    curve = load_curve(write_curve(tmp_path / "a.tsv", {"loss": [2.0], **{name: [at] for at, name in enumerate(names)}}))
    assert [column[0] for column in curve.repetitions("loss")] == list(range(11))
    assert curve.repetitions("gradient_norm") == []


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"loss": [3.0, "x"]}, "line 9: loss: expected a finite number; found 'x'"),
        ({"loss": [3.0, "inf"]}, "line 9: loss: expected a finite number; found 'inf'"),
        ({"loss": [3.0, ""]}, "line 9: loss: expected a finite number; found ''"),
        ({"loss": [3.0, "4_2"]}, "line 9: loss: expected a finite number; found '4_2'"),
        ({"loss": [3.0, " 4"]}, "line 9: loss: expected a finite number; found ' 4'"),
        ({"loss": [3.0, "\u0664"]}, "line 9: loss: expected a finite number; found '\u0664'"),
        ({"loss": [3.0], "gradient_norm": [0]}, "line 8: gradient_norm: expected a number above 0; found '0'"),
        ({"step": [2, 2], "loss": [3.0, 3.0]}, "line 9: step 2 follows step 2"),
        ({"step": [0], "loss": [3.0]}, "line 8: step 0 follows step 0"),
        ({"step": [1.5], "loss": [3.0]}, "line 8: step 1.5 follows"),
        ({"loss": [3.0], "lr": [1]}, "line 7: unknown column 'lr'; expected step, loss"),
        ({"learning_rate": [3.0]}, "line 7: expected columns step and loss or validation_loss"),
        ({"validation_loss": [3.0], "validation_loss_2": [3.0]}, r"line 7: repetitions of validation_loss are numbered \[2\]"),
        ({"validation_loss": [3.0, ""]}, "line 9: validation_loss: expected a finite number; found ''"),
        ({"loss": [3.0], "loss_2": [3.0]}, r"line 7: repetitions of loss are numbered \[2\]"),
        ({"loss": ["3.0\t4.0"]}, "line 8: has 3 cells; expected 2"),
    ],
)
def test_a_fault_is_reported_with_its_line(columns: dict[str, list[Any]], fault: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=f"a.tsv, {fault}"):
        load_curve(write_curve(tmp_path / "a.tsv", columns))


@pytest.mark.parametrize("fact", FACTS)
def test_a_curve_without_its_origin_is_refused(fact: str, tmp_path: Path) -> None:
    head = "".join(line for line in HEAD.splitlines(keepends=True) if not line.startswith(f"# {fact}:"))
    with pytest.raises(RelmError, match=f"a comment `# {fact}: TEXT` is missing"):
        load_curve(write_curve(tmp_path / "a.tsv", {"loss": [3.0]}, head))


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(HEAD)
    with pytest.raises(RelmError, match=r"expected columns step and loss or validation_loss, each column once; found $"):
        load_curve(tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text(f"{HEAD}step\tloss\n")
    with pytest.raises(RelmError, match="has no rows"):
        load_curve(tmp_path / "a.tsv")
    with pytest.raises(RelmError, match="no such file"):
        load_curve(tmp_path / "b.tsv")


def expected(**keys: Any) -> ExpectedCurve:
    """Return a section with a band."""
    band = {"basis": "a guess", "runs": 1, **keys}
    return validate(ExpectedCurve, {"curve": "a", "band": band}, Path("r.yaml"))


def test_a_band_that_no_run_can_leave_is_refused() -> None:
    with pytest.raises(RelmError, match=r"standard_deviation: expected less than or equal to 10"):
        expected(parts=[{"from_step": 1, "standard_deviation": 1e300}])
    with pytest.raises(RelmError, match=r"false_alarm_rate: expected greater than or equal to 0\.000000001"):
        validate(ExpectedCurve, {"curve": "a", "band": {"basis": "b", "runs": 1}, "false_alarm_rate": 1e-300}, Path("r.yaml"))


def test_parts_of_a_band_follow_one_another() -> None:
    parts = [{"from_step": step, "standard_deviation": 0.1} for step in (1, 10, 10)]
    with pytest.raises(RelmError, match=r"band: parts: expected from_step: 1 in the first.*\[1, 10, 10\]"):
        expected(parts=parts)
    with pytest.raises(RelmError, match=r"found \[10\]"):
        expected(parts=parts[1:2])


def test_a_band_needs_a_width_or_repetitions(tmp_path: Path) -> None:
    alone = load_curve(write_curve(tmp_path / "a.tsv", {"loss": [3.0]}))
    pair = load_curve(write_curve(tmp_path / "b.tsv", {"loss": [3.0], "loss_1": [3.0], "loss_2": [3.0]}))
    with pytest.raises(RelmError, match=r"band\.parts: missing, and a has no repetitions"):
        require_band(expected(), alone, ["main"], "r.yaml")
    with pytest.raises(RelmError, match=r"band\.runs: found 1; b has 2 repetitions"):
        require_band(expected(), pair, ["main"], "r.yaml")
    require_band(expected(runs=2), pair, ["main"], "r.yaml")
    wrong = expected(runs=2).model_copy(update={"phase": "long"})
    with pytest.raises(RelmError, match="there is no phase long; it has main"):
        require_band(wrong, pair, ["main"], "r.yaml")


def test_every_shipped_curve_is_whole_and_fits_the_recipes_that_name_it() -> None:
    files = sorted((CHECKOUT / "recipes" / "curves").glob("*.tsv"))
    assert files
    for file in files:
        curve = load_curve(file)
        assert len(curve.steps) > (1000 if curve.loss_key == "loss" else 30)
        assert file.stat().st_size < 300_000
    project = Project(CHECKOUT)
    named = {name: project.plan(name).curve for name in project.names()}
    assert {curve.name for curve in named.values() if curve} <= {file.stem for file in files}
