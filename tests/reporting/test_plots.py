"""The loss curve is the same bytes for the same log, and long logs are averaged, not cut."""

import json
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from relm.errors import RelmError
from relm.reporting.plots import Log, decimated, describe_curve, loss_curve, read_log, smoothed, spread


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(step: int, loss: float, rate: float = 0.1) -> dict[str, float]:
    return {"step": step, "loss": loss, "learning_rate": rate}


def test_long_arrays_become_means_of_bins() -> None:
    assert decimated(np.array([1.0, 3, 5, 7, 10]), points=3).tolist() == [2, 6, 10]
    assert decimated(np.array([1.0, 3, 5]), points=3).tolist() == [1, 3, 5]
    assert len(decimated(np.zeros(100_001))) <= 400


def test_the_running_mean_is_centred_and_narrows_at_the_ends() -> None:
    assert smoothed(np.array([0.0, 3, 6, 3, 0]), width=3).tolist() == [0, 3, 4, 3, 0]
    assert smoothed(np.array([1.0, 2, 9]), width=1).tolist() == [1, 2, 9]


def test_labels_too_close_together_are_moved_apart() -> None:
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5, 0.9], 0.1) == pytest.approx([0.45, 0.55, 0.9])
    assert spread([0.40, 0.5, 0.52], 0.1) == pytest.approx([0.37333, 0.47333, 0.57333], abs=1e-4)


def test_a_step_written_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    log = read_log({"main": written(tmp_path / "a", row(10, 7), row(20, 6), row(30, 5), row(20, 6.5), row(30, 5.5))})
    assert log.steps.tolist() == [10, 20, 30]
    assert log.losses.tolist() == [7, 6.5, 5.5]


def test_phases_follow_one_another(tmp_path: Path) -> None:
    logs = {"short": written(tmp_path / "a", row(1, 7), row(2, 6)), "long": written(tmp_path / "b", row(1, 5), row(2, 4))}
    log = read_log(logs)
    assert log.steps.tolist() == [1, 2, 3, 4]
    assert log.starts == {"short": 0, "long": 2}
    assert "from 7.00 to 4.00 nats per token over 4 optimizer steps" in describe_curve(log)


def test_rows_without_a_loss_are_passed_over(tmp_path: Path) -> None:
    assert read_log({"a": written(tmp_path / "a", {"event": "resumed"}, row(5, 3), {"step": 6, "loss": None})}).steps == [5]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", row(1, 7))
    path.write_text(path.read_text() + '{"step": 2, "lo')
    with pytest.raises(RelmError, match=r"train.jsonl, line 2: not a JSON object"):
        read_log({"main": path})


def test_an_empty_or_absent_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="no line has a step and a loss"):
        read_log({"main": written(tmp_path / "empty")})
    with pytest.raises(RelmError, match="absent: no such file"):
        read_log({"main": tmp_path / "absent"})


def falling(rows: int) -> Log:
    steps = np.arange(1, rows + 1, dtype=np.float64)
    return Log(steps, 4 + 3 * np.exp(-steps / rows), steps / rows, {"main": 0.0})


LEVELS = {"nats_per_token": 4.25, "unigram_nats_per_token": 6.5, "bigram_nats_per_token": 5.0}


def test_the_same_log_gives_the_same_bytes() -> None:
    first, second = loss_curve(falling(150), LEVELS), loss_curve(falling(150), LEVELS)
    assert first == second
    assert "<dc:date>" not in first


def test_the_figure_names_its_lines_and_axes() -> None:
    svg = loss_curve(falling(20), LEVELS)
    xml.etree.ElementTree.fromstring(svg)
    for words in ("held out 4.25", "bigrams 5.00", "unigrams 6.50", "loss (nats per token)", "optimizer step"):
        assert f"<!-- {words} -->" in svg


def test_nothing_measured_gives_no_line() -> None:
    assert "held out" not in loss_curve(falling(20), {})


def test_phases_are_marked_by_name_only_if_there_are_several() -> None:
    log = falling(20)
    both = loss_curve(Log(log.steps, log.losses, log.rates, {"short": 0.0, "long": 10.0}), {})
    assert "<!-- short -->" in both
    assert "<!-- long -->" in both
    assert "<!-- main -->" not in loss_curve(log, {})


def test_a_long_log_makes_no_larger_figure_than_a_short_one() -> None:
    assert len(loss_curve(falling(200_000), LEVELS)) < 1.5 * len(loss_curve(falling(400), LEVELS))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_log_of_a_few_rows_is_drawn_too(rows: int) -> None:
    assert loss_curve(falling(rows), LEVELS, narrow=True).startswith("<?xml")
