"""Files of runs of an original's own program, `recipes/reference_runs/NAME.yaml`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relm.errors import RelmError
from relm.recipes.project import Project

COMMIT = "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
EXPECT = {"metric": "random_windows.loss", "value": 1.88, "tolerance": 0.05, "basis": "b", "place": "README.md"}
RUNS = [{"seed": 1, "value": 1.9}, {"seed": 2, "value": 1.8}]
STATED: dict[str, Any] = {
    "program": "github.com/karpathy/nanoGPT",
    "commit": COMMIT,
    "command": "python a.py",
    "metric": "random_windows.loss",
    "runs": RUNS,
}


@pytest.fixture
def stated(copied: Path) -> Callable[..., Project]:
    """Return a function that writes a file of runs and a recipe that names it, and returns their project."""

    def write(row: dict[str, Any] | None = None, **changes: Any) -> Project:
        (copied / "recipes" / "reference_runs").mkdir(exist_ok=True)
        (copied / "recipes" / "reference_runs" / "made.yaml").write_text(yaml.dump({**STATED, **changes}))
        recipe = {"extends": "shakespeare_char", "title": "T", "expect": [{**EXPECT, "reference_runs": "made", **(row or {})}]}
        (copied / "recipes" / "compared.yaml").write_text(yaml.dump(recipe))
        return Project(copied)

    return write


@pytest.mark.parametrize(
    ("row", "changes", "fault"),
    [
        ({"reference_runs": "mad"}, {}, r"reference_runs/mad\.yaml: no such file \(did you mean made\?\)"),
        ({"reference_runs": 3}, {}, r"expect\.0\.reference_runs: expected text"),
        ({"noise": {"standard_deviation": 0.1, "runs": 2, "source": "s"}}, {}, "noise and reference_runs both give the spread"),
        ({"metric": "held_out.nats_per_token"}, {}, r"has figures of random_windows\.loss, and the row is on held_out"),
        (
            {},
            {"commit": "f" * 40},
            r"ran github\.com/karpathy/nanoGPT at ffffffff.*`source` is github\.com/karpathy/nanoGPT at 3adf",
        ),
        ({}, {"program": "github.com/karpathy/nanogp"}, "name runs of the recipe's source"),
        ({}, {"commit": COMMIT[:8]}, "commit: String should match pattern"),
        ({}, {"command": None}, "command: expected text"),
        ({}, {"runs": {"1": 1.9}}, "runs: expected a list"),
        ({}, {"runs": RUNS[:1]}, "runs: List should have at least 2 items"),
        ({}, {"runs": [*RUNS, {"seed": 3, "value": "1.7"}]}, r"runs\.2\.value: expected a number, without quotes"),
        ({}, {"runs": [*RUNS, {"seed": 3, "value": math.nan}]}, r"made\.yaml.*nan|runs\.2\.value: .*finite"),
        ({}, {"runs": [*RUNS, {"seed": 1, "value": 1.7}]}, "runs: seed 1 is there twice"),
        ({}, {"runs": [{**run, "value": 1.9} for run in RUNS]}, "runs: all 2 have the same figure, 1.9"),
        ({}, {"seeds": [1]}, "seeds: unknown key"),
    ],
)
def test_unsound_reference_runs_are_rejected(
    row: dict[str, Any], changes: dict[str, Any], fault: str, stated: Callable[..., Project]
) -> None:
    with pytest.raises(RelmError, match=fault):
        stated(row, **changes).plan("compared")


def test_the_content_of_the_file_decides_verdict_and_report_but_no_fingerprint(stated: Callable[..., Project]) -> None:
    before = stated().plan("compared")
    after = stated(runs=[*RUNS, {"seed": 3, "value": 1.7}]).plan("compared")
    assert before.fingerprint == after.fingerprint
    assert before.verdict() != after.verdict()
    assert before.report_key != after.report_key
    assert before.reference_runs["made"].content.mean == pytest.approx(1.85)


def test_shipped_reference_runs_are_read(checkout: Path) -> None:
    project = Project(checkout)
    names = sorted(path.stem for path in (checkout / "recipes" / "reference_runs").glob("*.yaml"))
    for name in names:
        assert project.reference_runs(name).content.command.startswith("python benchmarks/")
