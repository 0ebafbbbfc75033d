import pytest

from relm.recipes.run_folder import CURVE
from relm.training import progress


def test_a_log_gets_a_line_after_each_interval(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    bar = progress.Progress("pretrain main", 4, 1000, 64)
    bar.report({"step": 4, "loss": 5.25, "tokens_per_second": 100.0})
    bar.advance(5)
    bar.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pretrain main: step 5 of 1,000, loss 5.250, ")
    assert err.rstrip().endswith("minutes left")
    assert err.count("\n") == 1


def test_a_line_before_the_first_loss_is_known_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    bar = progress.Progress("pretrain main", 0, 1000, 64)
    bar.advance(1)
    bar.close()
    err = capsys.readouterr().err
    assert err.startswith("pretrain main: step 1 of 1,000, ")
    assert "loss" not in err


def test_the_verdict_on_a_published_curve_is_shown_and_a_deviation_is_reported_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    bar = progress.Progress("pretrain main", 0, 1000, 64)
    left = "left the band at step 2: loss 5.000, the published 4.000 ± 0.100"
    for step, verdict in enumerate(["within the band", left, left], 1):
        bar.report({"step": step, "loss": 5.0, "tokens_per_second": 100.0, CURVE: {"verdict": verdict}})
        bar.advance(step)
    bar.close()
    first, reported, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("pretrain main: step 1 of 1,000, loss 5.000 (within the band), ")
    assert reported == f"pretrain main: {left}"
    assert second.startswith("pretrain main: step 2 of 1,000, loss 5.000 (left the band at step 2), ")
    assert third.startswith("pretrain main: step 3 of 1,000, loss 5.000 (left the band at step 2), ")
