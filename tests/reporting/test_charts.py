"""A chart is the same bytes for the same values, and long lines are averaged, not cut."""

from typing import Any

import numpy as np
import pytest

from relm.reporting.charts import Chart, Level, Mark, Series, decimate, draw_chart, smooth, ticks
from relm.reporting.pages import template
from relm.reporting.training_charts import tabulate_values, training_charts
from relm.reporting.training_log import COLUMNS, Log


def chart(values: list[float], **options: Any) -> Chart:
    steps = np.arange(1, len(values) + 1, dtype=np.float64)
    options = {"described": "d", "last_step": float(len(values)), **options}
    return draw_chart("Title", "unit", [Series("ours", "training", steps, np.array(values))], **options)


def falling(rows: int, **columns: Any) -> Log:
    steps = np.arange(1, rows + 1, dtype=np.float64)
    nothing = dict.fromkeys(COLUMNS, np.full(rows, np.nan))
    own = {"loss": 4 + 3 * np.exp(-steps / rows), "learning_rate": steps / rows}
    return Log(steps, nothing | own | columns, {"main": 0.0})


def drawn(charts: list[Chart]) -> str:
    pieces: Any = template("pieces.html").module
    return "".join(pieces.draw(each) for each in charts)


def test_long_arrays_become_means_of_bins() -> None:
    assert decimate(np.array([1.0, 3, 5, 7, 10]), points=3).tolist() == [2, 6, 10]
    assert decimate(np.array([1.0, 3, 5]), points=3).tolist() == [1, 3, 5]
    assert len(decimate(np.zeros(100_001))) <= 400


def test_the_running_mean_is_centred_and_narrows_at_the_ends() -> None:
    assert smooth(np.array([0.0, 3, 6, 3, 0]), width=3).tolist() == [0, 3, 4, 3, 0]
    assert smooth(np.array([1.0, 2, 9]), width=1).tolist() == [1, 2, 9]


def test_values_are_placed_between_the_ends_of_the_axes() -> None:
    # From 0 to 4 with a margin of 5 %: 2 is at 2 / 4.2 of the height, counted from the bottom.
    (line,) = chart([0.0, 2.0, 4.0, 2.0], from_zero=True).lines
    assert line.path == "M250 1000l250-476 250-476 250 476"
    assert line.value == "2"


def test_a_level_is_a_line_over_all_steps_and_lines_are_listed_from_the_highest() -> None:
    found = chart([1.0, 3.0], levels=[Level("low", "bigrams", 2.0), Level("high", "unigrams", 5.0)])
    assert [line.label for line in found.lines] == ["high", "ours", "low"]
    assert found.lines[0].path == "M0 45H1000"  # 5 % of 4 are left free above it, of 4.4 in all


def test_values_far_above_the_others_make_the_axis_logarithmic_where_it_may_be() -> None:
    found = chart([100.0, 1.0, 1.0, 1.0], may_be_logarithmic=True)
    assert found.is_logarithmic
    assert [tick.text for tick in found.up] == ["1", "10", "100"]
    assert not chart([100.0, 1.0, 1.0, 1.0]).is_logarithmic
    assert not chart([100.0, 0.0, 1.0, 1.0], may_be_logarithmic=True).is_logarithmic


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 7), (2.9, 11.2), (0, 500_000), (0, 6e-4), (-1, 1)])
def test_an_axis_has_a_few_round_ticks_within_it(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low <= tick <= high for tick in found)


def test_not_a_number_is_left_out() -> None:
    assert chart([1.0, 3.0, 3.0]).lines[0].path == "M333 955l334-910 333 0"
    assert chart([1.0, np.nan, 3.0]).lines[0].path == "M333 955l667-910"


def test_interruptions_and_phases_are_marked_at_their_steps() -> None:
    marks = [Mark(0, "phase", "short"), Mark(2, "phase", "long"), Mark(3, "interruption", "resumed after step 3")]
    text = drawn([chart([1.0, 2.0, 3.0, 4.0], marks=marks, levels=[Level("high", "unigrams", 5.0)])])
    assert 'd="M500 0V1000"><title>long</title>' in text
    assert 'd="M750 0V1000"><title>resumed after step 3</title>' in text
    assert "interrupted and resumed once" in text


def test_the_loss_is_drawn_with_levels_validation_and_what_else_was_logged() -> None:
    log = falling(150, gradient_norm=np.ones(150), validation_loss=np.where(np.arange(150) % 50, np.nan, 5.0))
    charts = training_charts(log, {"nats_per_token": 4.25, "bigram_nats_per_token": 5.0, "bits_per_byte": 2.0})
    assert [each.title for each in charts] == ["Loss", "Learning rate", "Gradient norm"]
    assert {line.label for line in charts[0].lines} == {"training", "validation", "held out", "bigram counts"}
    assert "faint" in drawn(charts)
    titles, rows = tabulate_values(log)
    assert titles == ["step", "loss", "validation loss", "learning rate", "gradient norm"]
    assert rows[0] == ["1", f"{log.losses[0]:.4f}", "5.0000", "0.00667", "1"]
    assert len(rows) == 12


def test_a_long_log_makes_no_larger_page_than_a_short_one() -> None:
    assert len(drawn(training_charts(falling(200_000), {}))) < 1.5 * len(drawn(training_charts(falling(400), {})))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_log_of_a_few_rows_is_drawn_too(rows: int) -> None:
    assert ("line dot" in drawn(training_charts(falling(rows), {}))) == (rows == 1)
