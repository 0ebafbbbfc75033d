"""An optimizer and a schedule that are declared outside the package train a run and are known to recipes."""

from pathlib import Path
from typing import Any

from extended_process import run_extended

from tiny_runs import TinyRun, write_examples

PHASE = {
    "optimizer": {"name": "sign_descent", "learning_rate": 0.001, "sign_descent": {"share": 0.5}},
    "schedule": {"name": "stairs", "warmup_steps": 0, "floor": 0.0},
    "steps": 12,
}


def train(folder: Path) -> list[dict[str, Any]]:
    """Train the tiny recipe with the toy optimizer and schedule; return the rows of its log."""
    run = TinyRun(folder / "run", write_examples(folder / "examples", seed=0), {"pretrain": {"main": PHASE}})
    run.train()
    return run.lines()


def test_a_run_is_trained_with_an_optimizer_and_a_schedule_from_outside(tmp_path: Path) -> None:
    lines = run_extended("sign_descent", train, tmp_path)
    assert [line["learning_rate"] for line in lines] == [0.001, 0.001, 0.001, 0.0005, 0.0005, 0.00025, 0.00025]
    assert lines[-1]["loss"] < lines[0]["loss"]
