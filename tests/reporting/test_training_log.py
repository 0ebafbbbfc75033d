"""The logs of all phases are read in sequence, each step once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.errors import RelmError
from relm.reporting.training_charts import describe_loss
from relm.reporting.training_log import read_log


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(step: int, loss: float, **columns: Any) -> dict[str, Any]:
    return {"step": step, "loss": loss, "learning_rate": 0.1, **columns}


def test_phases_follow_one_another(tmp_path: Path) -> None:
    logs = {"short": written(tmp_path / "a", row(1, 7), row(2, 6)), "long": written(tmp_path / "b", row(1, 5), row(2, 4))}
    log = read_log(logs)
    assert log.steps.tolist() == [1, 2, 3, 4]
    assert log.starts == {"short": 0, "long": 2}
    assert "from 7.00 to 4.00 nats per token over 4 optimizer steps" in describe_loss(log)


def test_interruptions_and_seconds_count_on_over_the_phases(tmp_path: Path) -> None:
    first = written(tmp_path / "a", row(1, 7), row(2, 6, seconds=3.5))
    second = written(tmp_path / "b", row(1, 5), row(2, 4, resumed_after=1), row(3, 4, seconds=4.0))
    log = read_log({"short": first, "long": second})
    assert log.interruptions == (3,)
    assert log.total_seconds == 7.5
    assert read_log({"short": first, "long": written(tmp_path / "c", row(1, 5))}).total_seconds is None


def test_columns_that_a_line_lacks_are_nan(tmp_path: Path) -> None:
    log = read_log({"main": written(tmp_path / "a", row(1, 7), row(2, 6, gradient_norm=0.5, validation_loss=None))})
    assert np.isnan(log.columns["gradient_norm"]).tolist() == [True, False]
    assert np.isnan(log.columns["validation_loss"]).all()


def test_rows_without_a_loss_are_passed_over(tmp_path: Path) -> None:
    assert read_log({"a": written(tmp_path / "a", row(5, 3), {"step": 6, "loss": None})}).steps == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00\n", "line 1: expected an object, found"),
        (b"[" * 100_000, "line 1: expected an object, found"),
        (b'{"step": "x", "loss": 1}\n', "line 1: step: expected a whole number from 0 on, found 'x'"),
        (b'{"step": 1, "loss": [7]}\n', r"line 1: loss: expected a number, found \[7\]"),
    ],
)
def test_a_log_that_is_none_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(RelmError, match=message):
        read_log({"main": tmp_path / "a"})


def test_an_empty_or_absent_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="no line has a step and a loss"):
        read_log({"main": written(tmp_path / "empty")})
    with pytest.raises(RelmError, match="absent: no such file"):
        read_log({"main": tmp_path / "absent"})
