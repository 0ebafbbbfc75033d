"""The report and the model card state the comparison with the original program, for recipes that have one."""

import json
from pathlib import Path

import pytest

from finished_runs import FinishedRun
from relm.recipes.project import Project
from relm.reporting import oracles
from relm.reporting.oracles import describe_oracles, read_oracles
from small_project import CHECKOUT

ROW = {
    "name": "original",
    "original": "owner/name, train.py",
    "commit": "0123456789abcdef",
    "recipes": ["one", "two"],
    "steps": 100,
    "loss": 1e-7,
    "gradient_norm": 3e-7,
    "weights": 2e-7,
    "note": "",
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "oracles.json"
    path.write_text(json.dumps({"originals": [ROW]}))
    monkeypatch.setattr(oracles, "TABLE", path)
    return path


@pytest.mark.parametrize(
    ("name", "count"), [("one", 1), ("two", 1), ("one@h100", 1), ("three", 0), ("smoke/one", 0), ("one+seed=2", 0)]
)
def test_a_recipe_with_an_oracle_has_one_sentence_with_the_largest_difference(table: Path, name: str, count: int) -> None:
    found = describe_oracles(name)
    assert len(found) == count
    ending = "(owner/name, train.py at 01234567) for 100 steps at twin size: largest difference 3.0e-7"
    assert all(sentence.endswith(ending) for sentence in found)


def test_an_installation_without_documentation_has_none(table: Path) -> None:
    table.unlink()
    assert read_oracles() == []


def test_every_recipe_of_a_comparison_is_shipped() -> None:
    names = {name for oracle in read_oracles() for name in oracle.recipes}
    assert names
    assert names <= set(Project(CHECKOUT).names())


@pytest.mark.parametrize("recipes", [["tiny"], ["other"]])
def test_the_report_page_and_the_model_card_have_only_the_sentence_of_the_runs_recipe(
    run: FinishedRun, table: Path, recipes: list[str]
) -> None:
    table.write_text(json.dumps({"originals": [{**ROW, "recipes": [name.replace("tiny", run.plan.name) for name in recipes]}]}))
    folder = run.report()
    for page in ("report.html", "README.md"):
        found = "Training equals the original program (owner/name" in (folder / page).read_text(encoding="utf-8")
        assert found is (recipes == ["tiny"])
