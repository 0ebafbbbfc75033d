"""The time and speed of training are those of its log."""

import json
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import read_json, write_sidecar
from relm.errors import RelmError
from relm.evaluation.training_speed import evaluate_training
from relm.recipes.evaluation.evaluation_job import PhaseLength

LENGTH = PhaseLength(steps=20, global_batch_size=6)


def evaluate(folder: Path, logs: dict[str, list[dict[str, Any]] | str], **made_on: str) -> dict[str, Any]:
    """Evaluate phases of 20 steps by their logs, rows or whole texts; return the result with the sentence."""
    (folder / "model.safetensors").write_bytes(b"weights")
    write_sidecar(folder / "model.safetensors")
    paths = [folder / f"{name}.jsonl" for name in logs]
    for path, rows in zip(paths, logs.values(), strict=True):
        path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    said = evaluate_training(folder, dict.fromkeys(logs, LENGTH), paths, made_on, output=folder / "training.json")
    return {**read_json(folder / "training.json"), "said": said}


def row(step: int, seconds: float, speed: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "seconds": seconds, "samples_per_second": speed, **more}


def test_time_is_of_all_phases_and_the_steady_speed_leaves_each_first_line_out(tmp_path: Path) -> None:
    logs = {"short": [row(1, 10, 0.1), row(10, 16, 9.0), row(20, 20, 15.0)], "long": [row(1, 30, 0.2), row(20, 40, 12.0)]}
    result = evaluate(tmp_path, logs, device="tpu", topology="v3-8")
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
    assert result["said"] == "training took 1.0 minutes, 4.00 sequences/s"


def test_the_last_validation_is_a_figure(tmp_path: Path) -> None:
    rows = [row(1, 10, 1.0, validation_loss=9.0), row(20, 20, 1.0, validation_loss=2.5, validation_word_loss=2.5)]
    figures = evaluate(tmp_path, {"main": rows})["figures"]
    assert (figures["validation_loss"], figures["validation_word_loss"]) == (2.5, 2.5)


def test_losses_of_several_terms_are_averaged_over_the_last_ten_lines(tmp_path: Path) -> None:
    rows = [row(step, step, 1.0, loss=9.0, word_loss=float(step), order_loss=0.5) for step in range(1, 21)]
    rows[-1]["validation_word_loss"] = 7.0
    result = evaluate(tmp_path, {"pairs": rows})
    losses = {name: value for name, value in result["figures"].items() if name.startswith("pairs_")}
    assert losses == {"pairs_word_loss": 15.5, "pairs_order_loss": 0.5}
    assert result["protocol"]["last_lines"] == 10


def test_the_protocol_has_the_machines_of_each_phase_whose_log_lists_them(tmp_path: Path) -> None:
    stretches = [{"after_step": 0, "machine": "v3-8"}, {"after_step": 12, "machine": "h100"}]
    long = [row(1, 30, 0.2, machines=stretches[:1]), row(15, 35, 1.0, machines=stretches), row(20, 40, 12.0)]
    result = evaluate(tmp_path, {"short": [row(1, 10, 0.1), row(20, 20, 15.0)], "long": long})
    assert result["protocol"]["machines"] == {"long": stretches}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1, 1, 1), row(19, 3, 1)], "ends at step 19, expected step 20"),
        ([], "is empty"),
        ('{"step": 20,', r"main\.jsonl, line 1: expected an object"),
    ],
)
def test_a_log_that_is_not_of_the_whole_phase_is_refused(rows: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=message):
        evaluate(tmp_path, {"main": rows})
    assert not (tmp_path / "training.json").exists()


def test_broken_or_absent_logs_are_named(tmp_path: Path) -> None:
    (tmp_path / "b").write_text('{"step": 20,')
    for logs, message in (
        ([tmp_path / "a"], "a: no such file"),
        ([tmp_path / "b"], "b, line 1: expected an object, found"),
        ([], "--logs names 0 files; give the"),
    ):
        with pytest.raises(RelmError, match=message):
            evaluate_training(tmp_path, {"main": LENGTH}, logs, {}, output=tmp_path / "training.json")
