"""A run watched against a published curve: the band, the verdict, resuming."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.recipes.curves import Curve, CurveBand, ExpectedCurve, load_curve
from relm.training.curve_band import expected_averages
from relm.training.curve_watch import WITHIN, planned_steps, watched
from relm.training.loop import pretrain
from small_curves import made_run, write_curve, write_made_curve
from tiny_runs import TinyRun


@pytest.fixture(scope="session")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Curve:
    return load_curve(write_made_curve(tmp_path_factory.mktemp("curves") / "made.tsv"))


def expecting(runs: int = 10, **keys: Any) -> ExpectedCurve:
    """Return the section of a recipe that is watched."""
    band = CurveBand.model_validate({"basis": "made runs", "runs": runs, **keys.pop("band", {})})
    return ExpectedCurve(curve="made", band=band, **keys)


def verdict_of(curve: Curve, lines: list[dict[str, float]], **keys: Any) -> str:
    return watched(expecting(**keys), curve, lines).verdict


def test_the_band_holds_runs_without_a_fault(curve: Curve) -> None:
    verdicts = [verdict_of(curve, made_run(seed)) for seed in range(101, 151)]
    assert [verdict for verdict in verdicts if verdict != WITHIN] == []


@pytest.mark.parametrize("interval", [1, 7, 10])
def test_a_doubled_rate_is_seen_at_any_log_interval_and_named(interval: int, curve: Curve) -> None:
    lines = [line for line in made_run(101, factor=2.0) if line["step"] in planned_steps(200, interval)]
    verdict = verdict_of(curve, lines)
    assert verdict.startswith("left the band at step ")
    assert re.search(r"as with (1\.9|2\.0|2\.1) times the learning rate$", verdict)
    assert int(verdict.partition("step ")[2].partition(":")[0]) <= 30


def test_half_the_rate_and_no_warm_up_are_told_apart(curve: Curve) -> None:
    assert "as with 0.5 times the learning rate" in verdict_of(curve, made_run(101, factor=0.5))
    assert "as without a warm-up" in verdict_of(curve, made_run(101, warms_up=False))


def test_a_norm_shows_what_the_loss_does_not(curve: Curve) -> None:
    summed = [{**line, "gradient_norm": 8 * line["gradient_norm"]} for line in made_run(101)]
    found = verdict_of(curve, summed)
    assert found.startswith("left the band at step 1: gradient norm ")
    assert "divided by too few tokens: its norm is " in found
    alone = [{**line, "gradient_norm": line["gradient_norm"] / 8} for line in made_run(101)]
    assert "a gradient of one replica only" in verdict_of(curve, alone)


def test_a_line_without_a_norm_does_not_end_the_comparison_of_norms(curve: Curve) -> None:
    lines: list[dict[str, Any]] = [{**line} for line in made_run(101)]
    lines[4]["gradient_norm"] = None
    assert verdict_of(curve, lines) == WITHIN
    for line in lines[120:]:
        line["gradient_norm"] *= 8
    assert re.match(r"left the band at step 12[1-3]: gradient norm over 20 steps ", verdict_of(curve, lines))


def test_a_loss_that_is_no_number_is_outside_the_band(curve: Curve) -> None:
    lines = made_run(101)
    lines[50]["loss"] = float("nan")
    assert verdict_of(curve, lines).startswith("left the band at step 51: loss over 20 steps nan")


def test_another_learning_rate_is_seen_at_its_first_step(curve: Curve) -> None:
    lines = [
        {**line, "learning_rate": line["learning_rate"] * (1.02 if line["step"] >= 40 else 1.005)} for line in made_run(101)
    ]
    assert verdict_of(curve, lines).startswith("left the band at step 40: learning rate 0.00102, the published 0.001")


def test_a_rounded_published_rate_is_compared_as_far_as_its_digits_go(tmp_path: Path) -> None:
    rates = ["0.000001", "0.000002", "0.000003"]
    curve = load_curve(write_curve(tmp_path / "a.tsv", {"loss": [3.0, 2.9, 2.8], "learning_rate": rates}))
    keys: dict[str, Any] = {"runs": 1, "band": {"parts": [{"from_step": 1, "standard_deviation": 0.1}]}}
    lines = [{"step": step, "loss": 3.0, "learning_rate": rate} for step, rate in ((1, 0.7e-6), (2, 1.6e-6), (3, 2.1e-6))]
    assert verdict_of(curve, lines[:2], **keys) == WITHIN
    assert verdict_of(curve, lines, **keys).startswith("left the band at step 3: learning rate 2.1e-06")


def test_the_first_line_is_compared(curve: Curve) -> None:
    other = [{**line, "loss": line["loss"] + 1.0} for line in made_run(101)[:1]]
    assert verdict_of(curve, other).startswith("left the band at step 1: loss 5.981, the published 4.995 ± 0.270")


def test_a_line_has_the_published_figures_and_the_band(curve: Curve) -> None:
    watch = watched(expecting(window=2), curve, made_run(101)[:1])
    own, published = made_run(101)[:2], np.array(curve.columns["loss"])
    found = watch.judge(own[1])["curve"]
    assert found["loss"] == pytest.approx((own[0]["loss"] + own[1]["loss"]) / 2, abs=1e-5)
    # The published average is that of the repetitions, each rounded to four digits.
    assert found["published"] == pytest.approx(published[:2].mean(), abs=1e-4)
    assert 0.01 < found["band"] < 1
    assert found["verdict"] == WITHIN


def test_a_stated_spread_and_the_noise_of_the_curve_make_a_band() -> None:
    generator = np.random.default_rng(0)
    losses = (3.0 + 0.1 * generator.standard_normal(400)).tolist()
    curve = Curve("a", {}, range(1, 401), {"loss": losses})
    parts = [{"from_step": 1, "standard_deviation": 0.001}, {"from_step": 201, "standard_deviation": 0.5}]
    (short, long) = expected_averages(expecting(runs=1, band={"parts": parts}), curve, range(1, 401), 400)
    # Over 20 lines the noise of ours and of the curve is 0.1 sqrt(2 / 20) = 0.032, over 80 lines half of it.
    quantile = short.half_width[150] / 0.0316
    assert 3 < quantile < 6
    assert long.half_width[150] == pytest.approx(quantile * 0.0158, rel=0.2)
    assert short.half_width[300] == pytest.approx(quantile * 0.501, rel=0.2)


def test_a_norm_without_repetitions_is_compared_by_a_stated_ratio(curve: Curve) -> None:
    alone = Curve("a", {}, curve.steps, {name: curve.columns[name] for name in ("loss", "gradient_norm")})
    band = {"parts": [{"from_step": 1, "standard_deviation": 0.05}], "gradient_norm_ratio": 2.0}
    tripled = [{**line, "gradient_norm": 3 * line["gradient_norm"]} for line in made_run(101)]
    assert verdict_of(alone, made_run(101), runs=1, band=band) == WITHIN
    assert verdict_of(alone, tripled, runs=1, band=band).startswith("left the band at step 1: gradient norm")


def test_a_run_longer_than_its_curve_is_compared_as_far_as_it_goes(curve: Curve) -> None:
    later = [{**line, "step": 200 + line["step"], "loss": 9.0} for line in made_run(101)]
    assert verdict_of(curve, made_run(101) + later) == WITHIN


def test_the_state_follows_only_from_the_lines(curve: Curve, tmp_path: Path) -> None:
    lines = made_run(101, factor=2.0)
    whole = watched(expecting(), curve, lines)
    steps = [int(line["step"]) for line in lines]
    for interrupted in (1, 9, 15, 25, 60):
        resumed = watched(expecting(), curve, lines[:interrupted], steps[interrupted:])
        figures = [resumed.judge(line) for line in lines[interrupted:]]
        assert (resumed.verdict, resumed.left_at) == (whole.verdict, whole.left_at)
        assert figures[-1]["curve"]["verdict"] == whole.verdict


def published_by(run: TinyRun, folder: Path, shift: float) -> Curve:
    """Return a curve on which a tiny run lies, shifted from step 10 on."""
    lines = run.lines()
    losses = [line["loss"] + (shift if line["step"] >= 10 else 0.0) for line in lines]
    columns = {"step": [line["step"] for line in lines], "loss": losses}
    return load_curve(write_curve(folder / "made.tsv", columns | {"learning_rate": [line["learning_rate"] for line in lines]}))


def train_watched(run: TinyRun, curve: Curve) -> str:
    """Train a tiny run that is watched against a curve with a band of 0.1."""
    band = {"basis": "a test", "runs": 1, "parts": [{"from_step": 1, "standard_deviation": 0.02}]}
    section = {"curve": "made", "band": band, "window": 1}
    recipe = TinyRun(run.folder, run.examples, {"expect_curve": section}).recipe
    files = run.examples / "manifest.json", run.examples / "tokenizer.json"
    return pretrain(recipe, "main", *files, None, run.model_folder, run.fingerprint, curve=curve)


def test_a_watched_run_trains_the_same_weights_and_adds_one_key(
    uninterrupted: TinyRun, tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_watched(tiny_run, published_by(uninterrupted, tmp_path, shift=0.0))
    lines = tiny_run.lines()
    assert {line.pop("curve")["verdict"] for line in lines} == {WITHIN}
    assert lines == uninterrupted.lines()
    assert tiny_run.sha256() == uninterrupted.sha256()
    assert tiny_run.listed() == uninterrupted.listed()  # the key is not attested, so that a replay without a curve agrees
    assert "left the band" not in capsys.readouterr().err


def test_a_deviation_is_reported_and_training_goes_on(
    uninterrupted: TinyRun, tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = published_by(uninterrupted, tmp_path, shift=8.0)
    train_watched(tiny_run, curve)
    assert "left the band at step 10" in capsys.readouterr().err
    assert tiny_run.sha256() == uninterrupted.sha256()
    assert tiny_run.lines()[-1]["curve"]["verdict"].startswith("left the band at step 10")
