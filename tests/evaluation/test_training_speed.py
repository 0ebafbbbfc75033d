"""The time and speed of training are those of its log."""

import json
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import read_json, write_sidecar
from relm.errors import RelmError
from relm.evaluation.training_speed import LoggedPhase, evaluate_training


def logged(folder: Path, name: str, *rows: dict[str, Any], steps: int = 20) -> LoggedPhase:
    log = folder / f"{name}.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return LoggedPhase(name, log, steps, sequences=6)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    write_sidecar(path)
    return path


def row(step: int, seconds: float, speed: float) -> dict[str, float]:
    return {"step": step, "seconds": seconds, "samples_per_second": speed}


def test_time_is_of_all_phases_and_the_steady_speed_leaves_each_first_line_out(tmp_path: Path, model: Path) -> None:
    phases = [
        logged(tmp_path, "short", row(1, 10, 0.1), row(10, 16, 9.0), row(20, 20, 15.0)),
        logged(tmp_path, "long", row(1, 30, 0.2), row(20, 40, 12.0)),
    ]
    sentence = evaluate_training(phases, model, tmp_path / "training.json", "training", {"device": "tpu", "topology": "v3-8"})
    result = read_json(tmp_path / "training.json")
    assert result["figures"] == {
        "minutes": 1.0,
        "sequences_per_second": 4.0,
        "steady_sequences_per_second": 12.0,
        "steps": 40,
        "sequences": 240,
        "short_minutes": pytest.approx(1 / 3),
        "short_sequences_per_second": 6.0,
        "long_minutes": pytest.approx(2 / 3),
        "long_sequences_per_second": 3.0,
    }
    assert result["protocol"]["made_on"] == {"device": "tpu", "topology": "v3-8"}
    assert sentence == "training took 1.0 minutes, 4.00 sequences/s"


def test_the_last_validation_is_a_figure(tmp_path: Path, model: Path) -> None:
    last = {"validation_loss": 2.5, "validation_word_loss": 2.5}
    rows = [row(1, 10, 1.0) | {"validation_loss": 9.0}, row(20, 20, 1.0) | last]
    evaluate_training([logged(tmp_path, "main", *rows)], model, tmp_path / "training.json", "training", {})
    figures = read_json(tmp_path / "training.json")["figures"]
    assert (figures["validation_loss"], figures["validation_word_loss"]) == (2.5, 2.5)


def test_losses_of_several_terms_are_averaged_over_the_last_ten_lines(tmp_path: Path, model: Path) -> None:
    rows = [{**row(step, step, 1.0), "loss": 9.0, "word_loss": float(step), "order_loss": 0.5} for step in range(1, 21)]
    rows[-1]["validation_word_loss"] = 7.0
    evaluate_training([logged(tmp_path, "pairs", *rows)], model, tmp_path / "training.json", "training", {})
    result = read_json(tmp_path / "training.json")
    assert {name: value for name, value in result["figures"].items() if name.startswith("pairs_")} == {
        "pairs_word_loss": 15.5,
        "pairs_order_loss": 0.5,
    }
    assert result["protocol"]["last_lines"] == 10


def test_the_protocol_has_the_machines_of_each_phase_whose_log_lists_them(tmp_path: Path, model: Path) -> None:
    stretches = [{"after_step": 0, "machine": "v3-8"}, {"after_step": 12, "machine": "h100"}]
    first = {**row(1, 30, 0.2), "machines": stretches[:1]}
    phases = [
        logged(tmp_path, "short", row(1, 10, 0.1), row(20, 20, 15.0)),
        logged(tmp_path, "long", first, {**row(15, 35, 1.0), "machines": stretches}, row(20, 40, 12.0)),
    ]
    evaluate_training(phases, model, tmp_path / "training.json", "training", {})
    assert read_json(tmp_path / "training.json")["protocol"]["machines"] == {"long": stretches}


@pytest.mark.parametrize(
    ("rows", "message"), [([row(1, 1, 1), row(19, 3, 1)], "ends at step 19, expected step 20"), ([], "is empty")]
)
def test_a_log_that_is_not_of_the_whole_phase_is_refused(
    tmp_path: Path, model: Path, rows: list[dict[str, float]], message: str
) -> None:
    with pytest.raises(RelmError, match=message):
        evaluate_training([logged(tmp_path, "main", *rows)], model, tmp_path / "training.json", "training", {})
    assert not (tmp_path / "training.json").exists()


def test_a_broken_or_absent_log_is_named(tmp_path: Path, model: Path) -> None:
    phase = logged(tmp_path, "main", row(20, 1, 1))
    phase.log.write_text('{"step": 20,')
    with pytest.raises(RelmError, match=r"main\.jsonl, line 1: expected an object, found"):
        evaluate_training([phase], model, tmp_path / "training.json", "training", {})
    phase.log.unlink()
    with pytest.raises(RelmError, match=r"main\.jsonl: no such file"):
        evaluate_training([phase], model, tmp_path / "training.json", "training", {})
