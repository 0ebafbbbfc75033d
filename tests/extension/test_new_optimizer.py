"""An optimizer and a schedule that are declared outside the package train a run and are known to recipes."""

from pathlib import Path
from typing import Any

import pytest
from extended_process import run_extended

from relm.errors import RelmError
from relm.recipes.recipe import Recipe
from relm.recipes.section import validate
from relm.reporting.json_schema import schema_of
from tiny_runs import RECIPE, TinyRun, write_examples

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


def error_of(content: dict[str, Any]) -> str:
    """Return the error of a recipe with faults."""
    with pytest.raises(RelmError) as error:
        validate(Recipe, content, Path("toy.yaml"))
    return str(error.value)


def schema() -> dict[str, Any]:
    return schema_of(Recipe)["$defs"]  # type: ignore[return-value]


def test_a_run_is_trained_with_an_optimizer_and_a_schedule_from_outside(tmp_path: Path) -> None:
    lines = run_extended("sign_descent", train, tmp_path)
    assert [line["learning_rate"] for line in lines] == [0.001, 0.001, 0.001, 0.0005, 0.0005, 0.00025, 0.00025]
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_their_options_are_in_the_schema_and_their_names_among_the_known(tmp_path: Path) -> None:
    found = run_extended("sign_descent", schema)
    assert found["Optimizer"]["properties"]["sign_descent"]["description"] == "Keys of sign_descent."
    assert found["SignDescent"]["properties"]["share"]["default"] == 1.0
    assert found["Schedule"]["properties"]["name"]["enum"][-1] == "stairs"
    phase = {**RECIPE["pretrain"]["main"], "optimizer": {"name": "sgn", "learning_rate": 1}}
    content = {**RECIPE, "pretrain": {"main": phase}}
    expected = "optimizer.name: expected 'adamw', 'adam', 'lamb', 'adafactor', 'muon', 'sgd' or 'sign_descent'"
    assert expected in run_extended("sign_descent", error_of, content)
    assert "'adafactor', 'muon' or 'sgd'" in error_of(content), "this process does not know the extension"


def test_their_options_are_refused_with_another_name() -> None:
    phase = {**RECIPE["pretrain"]["main"], "optimizer": {"learning_rate": 1, "sign_descent": {"share": 2}}}
    message = run_extended("sign_descent", error_of, {**RECIPE, "pretrain": {"main": phase}})
    assert "sign_descent: read with name: sign_descent only, found {'share': 2.0} with name: adamw" in message
