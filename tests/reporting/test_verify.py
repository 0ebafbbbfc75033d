"""The rows of a verdict; the numbers here are computed by hand from a table of Student's t."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_ind

from finished_runs import FinishedRun
from relm.artifact import read_json, seal, sidecar_of, write_json
from relm.errors import RelmError
from relm.recipes.evaluation.expectations import Expectation
from relm.recipes.evaluation.reference_runs import LoadedRuns, ReferenceRuns
from relm.reporting.verify import find_machines, judge_row, judge_rows, overall, verify

# Table of t, 4 degrees of freedom: t(0.975) = 2.776445, t(0.80) = 0.940965.
FIVE_RUNS = {"standard_deviation": 0.2, "runs": 5, "source": "five seeds"}


def expectation(**changes: Any) -> Expectation:
    content = {"metric": "held_out.perplexity", "value": 31.0, "tolerance": 1.0, "basis": "b", "place": "table 1"}
    return Expectation.model_validate({**content, "noise": FIVE_RUNS, **changes})


def row(*ours: Any, **changes: Any) -> dict[str, Any]:
    """The row of one run, or of several with the seeds 1, 2 and so on."""
    runs = {seed: {"held_out": {"figures": {"perplexity": value}}} for seed, value in enumerate(ours, 1)}
    return judge_row(expectation(**changes), runs)


def test_the_interval_and_the_power_are_those_computed_by_hand() -> None:
    # e = 0.2 * sqrt(1 + 1) = 0.2828427; half = 2.776445 * e = 0.7852972; 0.4 - half = -0.3852972, 0.4 + half = 1.1852972
    judged = row(31.4)
    assert judged["standard_error"] == pytest.approx(0.2828427, abs=1e-6)
    assert judged["interval"] == pytest.approx([-0.3852972, 1.1852972], abs=1e-5)
    # 1 + 3.7610603 * 0.2828427 = 2.0637884: a noncentral t of 4 degrees of freedom and noncentrality 3.76 exceeds t(0.975)
    # four times in five.
    assert judged["would_have_noticed"] == pytest.approx(2.0637884, abs=1e-5)
    # Margin 0.6. Two seeds: 5 degrees of freedom, 2.570582 * 0.2 * sqrt(1/2 + 1) = 0.6297 is too wide; three: 6 degrees of
    # freedom, 2.446912 * 0.2 * sqrt(1/3 + 1) = 0.5651.
    assert judged["seeds_that_would_decide"] == 3
    assert judged["verdict"] == "undecided"
    assert judged["sentence"] == (
        "held_out.perplexity: 31.4 here, 31 published (table 1), difference +0.4, 95 % interval -0.385 to +1.19, partly "
        "outside the tolerance of 1: undecided. It would have noticed a difference of 2.06 four times in five; 3 seeds of "
        "ours would decide if it stays."
    )


def test_a_mean_of_several_published_runs_narrows_the_interval() -> None:
    # 0.2 * sqrt(1 + 1/4) = 0.2236068, times 2.776445
    low, high = row(31.4, published_runs=4)["interval"]
    assert (high - low) / 2 == pytest.approx(0.6208320, abs=1e-5)


def test_the_mean_of_several_seeds_is_judged_by_their_own_spread() -> None:
    # Mean 31.4, standard deviation 0.2. e = 0.2 * sqrt(1/3 + 1) = 0.2309401; t(0.975) of 2 degrees of freedom is 4.302653.
    judged = row(31.2, 31.4, 31.6, noise=None)
    assert (judged["ours"], judged["difference"]) == (pytest.approx(31.4), pytest.approx(0.4))
    assert judged["seeds"] == [{"seed": 1, "value": 31.2}, {"seed": 2, "value": 31.4}, {"seed": 3, "value": 31.6}]
    assert judged["noise"]["standard_deviation"] == pytest.approx(0.2)
    assert (judged["noise"]["runs"], judged["noise"]["source"]) == (3, "the recipe's own seeds 1, 2 and 3")
    assert judged["degrees_of_freedom"] == 2
    assert judged["interval"] == pytest.approx([0.4 - 0.9936552, 0.4 + 0.9936552], abs=1e-5)
    # Margin 0.6. Five seeds: 4 degrees of freedom, 2.776445 * 0.2 * sqrt(1/5 + 1) = 0.6083; six: 5, 2.570582 * 0.2 * sqrt(1/6 +
    # 1) = 0.5553.
    assert judged["sentence"] == (
        "held_out.perplexity: 31.4 here (mean of 3 seeds, standard deviation 0.2), 31 published (table 1), difference +0.4, "
        "95 % interval -0.594 to +1.39, partly outside the tolerance of 1: undecided. It would have noticed a difference of "
        "2.31 four times in five; 6 seeds of ours would decide if it stays."
    )


def test_other_runs_that_the_recipe_states_are_pooled_with_its_own_seeds() -> None:
    # (2 * 0.2^2 + 4 * 0.1^2) / 6 = 0.02, whose root is 0.1414214
    judged = row(31.2, 31.4, 31.6, noise={"standard_deviation": 0.1, "runs": 5, "source": "a study"})
    assert judged["noise"]["standard_deviation"] == pytest.approx(0.1414214, abs=1e-6)
    assert (judged["noise"]["runs"], judged["degrees_of_freedom"]) == (8, 6)
    assert judged["noise"]["source"] == ("0.2 of the recipe's own seeds 1, 2 and 3, pooled with 0.1 of 5 other runs: a study")


def test_decided_seeds_are_counted() -> None:
    judged = row(31.2, 31.4, 31.6, noise=None, tolerance=1.4)
    assert (judged["verdict"], judged["seeds_that_would_decide"]) == ("consistent", 3)
    assert judged["sentence"].endswith("these 3 seeds decide.")


def test_seeds_that_all_give_the_same_figure_show_no_noise() -> None:
    judged = row(31.4, 31.4, noise=None)
    assert judged["verdict"] == "difference shown, no noise known"
    assert "all 2 seeds gave the same figure; without known noise" in judged["sentence"]


def test_a_seed_without_the_figure_leaves_no_mean() -> None:
    judged = row(31.4, None, 31.2)
    assert (judged["verdict"], judged["ours"]) == ("not comparable", None)
    assert "(found None) with seed 2" in judged["sentence"]


@pytest.mark.parametrize(
    ("ours", "tolerance", "verdict"),
    [
        (31.4, 1.1853, "consistent"),  # the interval's end, 1.18530 rounded up, is just inside
        (31.4, 1.1852, "undecided"),
        (30.6, 1.1853, "consistent"),
        (30.6, 1.1852, "undecided"),
        (33.0, 1.2148, "undecided"),  # the interval is 1.21470 to 2.78530
        (33.0, 1.2147, "not consistent"),
        (29.0, 1.2147, "not consistent"),
        (31.0, 0.1, "undecided"),  # the tolerance lies inside the interval: no difference seen is not equivalence
    ],
)
def test_the_whole_interval_decides(ours: float, tolerance: float, verdict: str) -> None:
    assert row(ours, tolerance=tolerance)["verdict"] == verdict


def test_a_single_noisy_published_run_leaves_it_undecided_for_ever() -> None:
    # Even with endless seeds the interval is +-1.96 * 0.2 = 0.392 about 0.7, and the tolerance 1.0 lies in it.
    judged = row(31.7)
    assert judged["seeds_that_would_decide"] is None
    assert "no number of seeds of ours would decide" in judged["sentence"]


PROGRAM = ReferenceRuns.model_validate(
    {
        "program": "github.com/a/b",
        "commit": "0123456789" * 4,
        "command": "python c.py",
        "metric": "held_out.perplexity",
        "runs": [{"seed": seed, "value": value} for seed, value in ((7, 31.1), (1, 31.3), (2, 31.5), (3, 31.7))],
    }
)


def both_rows(*ours: float, **changes: Any) -> list[dict[str, Any]]:
    """Return the row of the published figure, and that of the original's program with four runs around 31.4."""
    runs = {seed: {"held_out": {"figures": {"perplexity": value}}} for seed, value in enumerate(ours, 1)}
    made = expectation(**{"noise": None, "reference_runs": "b", **changes})
    return judge_rows(made, runs, [None], LoadedRuns("b", "f" * 64, PROGRAM))


def test_runs_of_the_originals_program_are_compared_as_two_samples() -> None:
    ours = [31.2, 31.4, 31.6]
    published, program = both_rows(*ours, tolerance=0.6)
    # Means 31.4 and 31.4. (2 * 0.04 + 3 * 0.0666667) / 5 = 0.056, whose root is 0.2366432; e = 0.2366432 * sqrt(1/3 + 1/4) =
    # 0.1807392; t(0.975) of 5 degrees of freedom is 2.570582.
    assert program["published"] == pytest.approx(31.4)
    assert (program["published_runs"], program["degrees_of_freedom"]) == (4, 5)
    assert program["interval"] == pytest.approx([-0.4646049, 0.4646049], abs=1e-6)
    test = ttest_ind(ours, PROGRAM.values).confidence_interval(0.95)
    assert program["interval"] == pytest.approx([test.low, test.high])
    assert program["sentence"].startswith(
        "held_out.perplexity: 31.4 here (mean of 3 seeds, standard deviation 0.2), 31.4 by the original's program (mean of 4 "
        "runs: github.com/a/b at 01234567, seeds 7, 1, 2, 3), difference "
    )
    assert program["reference"]["runs"][0] == {"seed": 7, "value": 31.1}
    assert (program["reference"]["name"], program["reference"]["sha256"]) == ("b", "f" * 64)
    # The published row has the same spread, and one published run.
    assert (published["published"], published["degrees_of_freedom"], published["verdict"]) == (31.0, 5, "undecided")


def test_the_programs_runs_decide_where_one_published_figure_does_not() -> None:
    published, program = both_rows(31.2, 31.4, 31.6, tolerance=0.6)
    assert (program["verdict"], published["counts"]) == ("consistent", False)
    assert overall([published, program]) == ("consistent", program["sentence"])


def test_a_published_figure_that_differs_outweighs_the_programs_runs() -> None:
    rows = both_rows(31.2, 31.4, 31.6, tolerance=0.6, value=20.0)
    assert overall(rows) == ("not consistent", "Of 2 comparisons: 1 not consistent; 1 consistent.")


def test_undecided_runs_of_the_program_leave_both_undecided() -> None:
    rows = both_rows(31.2, 31.4, 31.6, tolerance=0.4)
    assert overall(rows) == ("undecided", "Of 2 comparisons: 2 undecided.")


def test_runs_of_the_program_are_comparable_where_the_published_figure_is_not() -> None:
    published, program = both_rows(31.2, 31.4, 31.6, tolerance=0.6, comparable=False)
    assert (published["verdict"], program["verdict"]) == ("not comparable", "consistent")
    assert overall([published, program]) == ("consistent", "Of 2 comparisons: 1 consistent; 1 not comparable.")


def test_without_noise_the_difference_is_shown_and_nothing_concluded() -> None:
    judged = row(31.4, noise=None)
    assert judged["verdict"] == "difference shown, no noise known"
    assert judged["difference"] == pytest.approx(0.4)
    assert "interval" not in judged
    assert "would_have_noticed" not in judged


def test_another_protocol_is_not_comparable() -> None:
    judged = row(31.0, comparable=False)
    assert judged["verdict"] == "not comparable"
    assert "protocol differs" in judged["sentence"]
    assert "difference" not in judged


@pytest.mark.parametrize("figure", [None, float("nan"), "31", True])
def test_a_figure_that_is_no_number_is_not_comparable(figure: Any) -> None:
    judged = row(figure)
    assert judged["verdict"] == "not comparable"
    assert "gives no figure perplexity" in judged["sentence"]


def test_a_task_that_was_not_evaluated_is_not_comparable() -> None:
    judged = judge_row(expectation(metric="lambada.accuracy"), {1: {}})
    assert judged["verdict"] == "not comparable"
    assert "task lambada was not evaluated" in judged["sentence"]


def test_a_speed_is_compared_only_on_the_hardware_it_was_measured_on() -> None:
    speed = expectation(metric="held_out.perplexity", measured_on="v3-8")
    figures = {1: {"held_out": {"figures": {"perplexity": 31.4}}}}
    assert judge_row(speed, figures, ["v3-8"])["difference"] == pytest.approx(0.4)
    elsewhere = {
        ("v4-8",): "this run is on v4-8",
        (None,): "this run names no machine",
        ("v3-8", "h100"): "this run was trained on v3-8, then on h100",
        (None, "v3-8"): "this run was trained on a machine without a name, then on v3-8",
    }
    for machines, words in elsewhere.items():
        judged = judge_row(speed, figures, machines)
        assert judged["verdict"] == "not comparable"
        assert f"it was measured on v3-8, and {words}" in judged["sentence"]


def test_the_machines_of_a_run_are_those_of_all_phases_of_its_log() -> None:
    first, second = {"after_step": 0, "machine": "v3-8"}, {"after_step": 40, "machine": "h100"}
    training = {"protocol": {"machines": {"short": [first], "long": [first, second]}}, "figures": {}}
    assert find_machines({"held_out": {"figures": {}}, "training": training}) == ["v3-8", "h100"]
    assert find_machines({"held_out": {"figures": {}}}) == []


def test_a_figure_may_lie_deeper() -> None:
    judged = judge_row(expectation(metric="glue.mnli.accuracy"), {1: {"glue": {"figures": {"mnli": {"accuracy": 31}}}}})
    assert judged["ours"] == 31.0


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (["consistent", "not consistent", "undecided"], "not consistent"),
        (["consistent", "undecided", "difference shown, no noise known"], "undecided"),
        (["consistent", "difference shown, no noise known"], "difference shown, no noise known"),
        (["not comparable", "consistent"], "consistent"),
        (["not comparable", "not comparable"], "not comparable"),
    ],
)
def test_the_worst_row_names_the_whole(verdicts: list[str], word: str) -> None:
    judged, sentence = overall([{"verdict": verdict, "sentence": ""} for verdict in verdicts])
    assert judged == word
    assert sentence.startswith(f"Of {len(verdicts)} published figures: 1 {word}") or verdicts == ["not comparable"] * 2


def test_a_missing_expectation_is_stated() -> None:
    assert overall([]) == ("no published figure", "There is no published figure to compare with.")


# --- the step ---------------------------------------------------------------------------------------------------------------

EXPECT = [expectation(metric="held_out.nats_per_token", value=4.0, tolerance=9.0).model_dump(mode="json")]


def again(run: Any, output: Path, **changes: Any) -> str:
    return verify(run.plan.recipe, run.judged(**changes), output)


def test_verify_writes_rows_and_identities(finished_run: Callable[..., Any], recipe: Callable[..., Any]) -> None:
    run = finished_run(recipe(expect=EXPECT))
    judged = read_json(run.verify)
    assert judged["verdict"] == "consistent"
    assert judged["fingerprint"] == run.plan.fingerprint
    assert [each["metric"] for each in judged["rows"]] == ["held_out.nats_per_token"]
    assert [each["what"] for each in judged["integrity"]] == [
        "fingerprint of the model",
        "model that held_out evaluated",
        "model that samples evaluated",
    ]


def test_the_runs_of_all_seeds_are_checked_and_stated(finished_run: Callable[..., Any], recipe: Callable[..., Any]) -> None:
    run = finished_run(recipe(expect=[{**EXPECT[0], "noise": None}], seed=3, seeds=3))
    judged = read_json(run.verify)
    assert [(each["seed"], each["fingerprint"]) for each in judged["runs"]] == [
        (each.recipe.seed, each.fingerprint) for each in run.plan.runs
    ]
    assert [each["value"] for each in judged["rows"][0]["seeds"]] == [4.25, 4.5, 4.75]
    assert (judged["fingerprint"], judged["rows"][0]["ours"]) == (run.plan.fingerprint, 4.5)
    assert len(judged["integrity"]) == 9
    swapped = run.plan.runs[1].evaluations()
    with pytest.raises(RelmError, match=r"held_out\.json: evaluated the model with sha256"):
        again(run, Path("again.json"), evaluations=swapped)


def test_a_bad_figure_is_a_result_and_no_error(finished_run: Callable[..., Any], recipe: Callable[..., Any]) -> None:
    bad = [{**EXPECT[0], "value": 100.0}]
    run = finished_run(recipe(expect=bad))
    assert again(run, Path("again.json")).startswith("verified 1 published figures and 3 identities: not consistent.")


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def forget_fingerprint(model: Path) -> None:
    judged = json.loads(sidecar_of(model).read_text())
    del judged["fingerprint"]
    write_json(sidecar_of(model), seal(judged))


def name_other_model(path: Path) -> None:
    write_json(path, {**read_json(path), "model_sha256": "f" * 64})


# Fault -> what is done to the run, what else is judged, and the refusal.
FAULTS: dict[str, tuple[Callable[[FinishedRun], object], dict[str, Any], str]] = {
    "another fingerprint": (
        lambda run: None,
        {"fingerprint": "012345678901"},
        r"trained from fingerprint \w{12}, the recipe now has 0123",
    ),
    "figures of another model": (
        lambda run: name_other_model(run.evaluations["held_out"]),
        {},
        r"held_out.json: evaluated the model with sha256 ffff",
    ),
    "a changed model": (lambda run: flip_last_byte(run.model), {}, "changed since it was made"),
    "no fingerprint": (lambda run: forget_fingerprint(run.model), {}, "trained from fingerprint None"),
}


@pytest.mark.parametrize(("damage", "changes", "message"), FAULTS.values(), ids=FAULTS)
def test_other_files_than_the_runs_are_refused(run: FinishedRun, damage: Any, changes: dict[str, Any], message: str) -> None:
    damage(run)
    with pytest.raises(RelmError, match=message):
        again(run, Path("again.json"), **changes)
    assert not Path("again.json").exists()


def test_figures_of_another_task_are_refused(run: FinishedRun) -> None:
    with pytest.raises(RelmError, match="expected the figures of task held_out"):
        again(run, Path("again.json"), evaluations={"held_out": run.evaluations["samples"]})
