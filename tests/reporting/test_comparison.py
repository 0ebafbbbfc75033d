"""`relm diff`: keys, and figures with intervals, of two recipes, runs or results."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from finished_runs import FIGURES, FinishedRun
from relm.artifact import read_json, record_of, write_json
from relm.cli import main
from relm.errors import RelmError
from relm.recipes.project import Project
from relm.recipes.resolved import record_run
from relm.reporting.comparison import (
    RunComparison,
    compare,
    compare_sides,
    describe_comparison,
    find_other_protocol,
    find_side,
)
from relm.reporting.publish import publish


@pytest.fixture
def two_runs(copied_run: FinishedRun) -> tuple[str, str]:
    """Names of two runs of one recipe: the second has a higher rate and other figures."""
    plan = copied_run.plan
    write_json(plan.run_folder / "resolved.json", record_run(plan))
    path = Path("recipes/tiny.yaml")
    content = yaml.safe_load(path.read_text())
    content["pretrain"]["main"]["optimizer"]["learning_rate"] = 0.002
    content["title"] = "Another title"
    path.write_text(yaml.safe_dump(content))
    second = Project().plan("tiny")
    shutil.copytree(plan.run_folder, second.run_folder)
    write_json(second.run_folder / "resolved.json", record_run(second))
    change_figures(held_out(f"tiny/{second.fingerprint}"), nats_per_token=4.0)
    return f"tiny/{plan.fingerprint}", f"tiny/{second.fingerprint}"


def change_figures(path: Path, **figures: Any) -> None:
    """Replace or add figures of an evaluation, whose record would show that they were changed."""
    record_of(path).unlink(missing_ok=True)
    content = read_json(path)
    write_json(path, {**content, "figures": content["figures"] | figures})


def publish_first(runs: tuple[str, str]) -> Path:
    """Publish what `relm diff` reads of the first run, and return the folder."""
    run, folder = Path("work/runs", runs[0]), Path("results/tiny")
    evaluations = {f"eval/{path.name}": path for path in run.glob("eval/*/*.json") if ".record." not in path.name}
    publish({"recipe.json": run / "resolved.json", "train.jsonl": run / "main/train.jsonl", **evaluations}, folder)
    return folder


def held_out(run: str) -> Path:
    """Return the file of a run's held-out figures."""
    return next(Path("work/runs", run).glob("eval/*/held_out.json"))


def compared(first: str, second: str) -> dict[str, Any]:
    """Return a comparison as plain values."""
    return plain(compare(Project(), first, second))


def plain(found: RunComparison) -> dict[str, Any]:
    """Return a comparison as plain values."""
    figures = [{**each._asdict(), "difference": each.difference} for each in found.figures]
    return {"keys": [(each.key, each.first, each.second, each.is_meaning) for each in found.keys or ()], "figures": figures}


def text_of(first: str, second: str) -> str:
    """Return a comparison as `relm diff` prints it."""
    return describe_comparison(compare(Project(), first, second))


def figure_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the row of a figure."""
    (row,) = [row for row in found["figures"] if f"{row['task']}.{row['figure']}" == name]
    return dict(row)


def test_keys_with_both_values_those_of_the_fingerprint_first(two_runs: tuple[str, str]) -> None:
    assert compared(*two_runs)["keys"] == [
        ("pretrain.main.optimizer.learning_rate", 0.001, 0.002, True),
        ("title", "A tiny GPT-2 on two texts", "Another title", False),
    ]


def test_recipes_runs_and_results_are_found_by_their_names_and_folders(two_runs: tuple[str, str]) -> None:
    plan = Project().plan("tiny")
    assert two_runs[1] == f"tiny/{plan.fingerprint}"
    publish_first(two_runs)
    work = Path("work")
    found = {
        given: find_side(Project(), work, given)
        for given in ("tiny", "recipes/tiny.yaml", two_runs[0], f"work/runs/{two_runs[1]}", two_runs[0][5:11], "results/tiny")
    }
    recipes = [side.resolved["recipe"] for side in found.values() if side.resolved]
    rates = [recipe["pretrain"]["main"]["optimizer"]["learning_rate"] for recipe in recipes]
    assert rates == [0.002, 0.002, 0.001, 0.002, 0.001, 0.001]
    assert all(side.evaluations["held_out"]["figures"] for side in found.values())


def test_nothing_of_a_name_suggests_the_nearest(two_runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "tiny", "tyni"]) == 1
    assert capsys.readouterr().err.endswith("no folder with recipe.json; did you mean tiny?\n")


def test_a_difference_has_an_interval_where_both_state_their_standard_errors(two_runs: tuple[str, str]) -> None:
    row = figure_of(compared(*two_runs), "held_out.nats_per_token")
    assert (row["first"], row["second"], row["difference"], row["interval"]) == (4.25, 4.0, -0.25, None)
    for run, error in zip(two_runs, (0.03, 0.04), strict=True):
        change_figures(held_out(run), nats_per_token_standard_error=error)
    found = compared(*two_runs)
    low, high = figure_of(found, "held_out.nats_per_token")["interval"]
    assert (low, high) == pytest.approx((-0.25 - 1.96 * 0.05, -0.25 + 1.96 * 0.05), abs=1e-5)
    assert not [row for row in found["figures"] if row["figure"].endswith("_standard_error")]
    assert "95 % interval -0.348 to -0.152" in text_of(*two_runs)


def test_large_figures_have_no_digits_behind_the_point(two_runs: tuple[str, str]) -> None:
    first, second = two_runs
    change_figures(held_out(second), perplexity_per_word=4122261.4)
    change_figures(held_out(first), perplexity_per_word=12866.15)
    assert re.search(r"perplexity_per_word +12,866 +4,122,261 +\+4,109,395", text_of(first, second))


def test_counts_that_are_equal_are_left_out(two_runs: tuple[str, str]) -> None:
    figures = {row["figure"] for row in compared(*two_runs)["figures"]}
    assert figures == {name for name, value in FIGURES.items() if isinstance(value, float)}


def test_other_protocols_are_not_comparable_and_nothing_is_subtracted(two_runs: tuple[str, str]) -> None:
    content = read_json(held_out(two_runs[1]))
    content["protocol"]["context"] = 128
    write_json(held_out(two_runs[1]), content)
    row = figure_of(compared(*two_runs), "held_out.nats_per_token")
    assert (row["not_comparable"], row["difference"], row["interval"]) == ("other protocols: context", None, None)
    text = text_of(*two_runs)
    assert text.count("not comparable: other protocols: context") == 1, "once for the evaluation"
    same = {"protocol": {"in_words": "Scored.", "context": 64}}
    for noted in (
        {},
        {"near_ties": "questions", "tie_split": "accuracy"},
        {"scored_as_text": {"cr_lf": 3}},
    ):  # as older ones lack
        assert find_other_protocol(same, {"protocol": {"in_words": "All were scored.", "context": 64, **noted}}) is None


def test_a_text_is_a_hundred_columns_wide_and_equal_sides_differ_in_nothing(two_runs: tuple[str, str]) -> None:
    text = text_of(*two_runs)
    assert max(map(len, text.splitlines())) <= 100
    side = find_side(Project(), Path("work"), two_runs[0])
    same = plain(compare_sides(side, side))
    assert same["keys"] == []
    assert {row["difference"] for row in same["figures"]} == {0}


def test_a_damaged_evaluation_is_named_as_such(two_runs: tuple[str, str]) -> None:
    held_out(two_runs[1]).write_text("{")
    reasons = {row["not_comparable"] for row in compared(*two_runs)["figures"] if row["task"] == "held_out"}
    assert reasons == {"B's file is damaged"}


def test_a_published_folder_that_was_changed_is_not_compared(two_runs: tuple[str, str]) -> None:
    folder = publish_first(two_runs)
    figures = folder / "eval/held_out.json"
    figures.write_text(figures.read_text().replace("4.25", "3.25"))
    reasons = {row["not_comparable"] for row in compared(str(folder), two_runs[1])["figures"] if row["task"] == "held_out"}
    assert reasons == {"A's file is damaged"}
    (folder / "recipe.json").write_text("{}")
    with pytest.raises(RelmError, match=r"results/tiny/recipe\.json: damaged: sha256 is \w{64}, published was \w{64}"):
        compared(str(folder), two_runs[1])


def test_a_recipe_that_has_not_run_is_compared_by_its_keys_alone(two_runs: tuple[str, str]) -> None:
    content = yaml.safe_load(Path("recipes/tiny.yaml").read_text())
    content["seed"] = 5
    Path("recipes/new.yaml").write_text(yaml.safe_dump(content))
    found = compared(two_runs[1], "new")
    assert [row[0] for row in found["keys"]] == ["seed"]
    assert {row["not_comparable"] for row in found["figures"]} == {"only A has it"}
