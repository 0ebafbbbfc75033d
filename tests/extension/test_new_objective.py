"""An objective that is declared outside the package trains a run and is known to recipes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from extended_process import extended_environment, run_extended

from relm.examples.builders import open_examples
from relm.examples.generated import GeneratedExamples
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.recipe import Recipe
from relm.recipes.section import validate
from tiny_runs import RECIPE, TinyRun, write_examples

CHANGES = {
    "pretrain": {"main": {"objective": "backwards", "backwards": {"unscored": 3}, "steps": 12}},
    "run": {"validation_interval": 6},
}
LATE = "import backwards; from relm.recipes.phase import Phase; print('backwards' in Phase.model_fields)"


def train(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Train the tiny recipe with the toy objective; return the rows of its log, and a batch, real and generated."""
    run = TinyRun(folder / "run", write_examples(folder / "examples", seed=0), CHANGES)
    run.train()
    phase, row = run.recipe.pretrain["main"], np.zeros(1, np.int64)
    real = open_examples(run.examples / "manifest.json", "train", phase, seed=0).batch(row, row)
    generated = GeneratedExamples(phase, 257, SpecialIds(), size=1, seed=0).batch(row, row)
    return run.lines(), real, generated


def read_as_published(folder: Path) -> tuple[list[int], list[int]]:
    """Return the inputs of the first window, and those that a script from outside reads."""
    examples, row, read = write_examples(folder / "examples", seed=0), np.zeros(1, np.int64), []
    for given in ({}, {"as_published": {"builder": "backwards_script"}}):
        phase = validate(Recipe, recipe_with(**given), Path("toy.yaml")).pretrain["main"]
        batch = open_examples(examples / "manifest.json", "train", phase, seed=0).batch(row, row)
        read.append(batch["input_ids"][0].tolist())
    return read[0], read[1]


def recipe_with(**phase: Any) -> dict[str, Any]:
    return {**RECIPE, "pretrain": {"main": {**RECIPE["pretrain"]["main"], **phase}}}


def test_examples_are_read_as_a_script_from_outside_reads_them(tmp_path: Path) -> None:
    windows, read = run_extended("backwards_script", read_as_published, tmp_path)
    assert read[1:] == windows[:0:-1]


def test_a_run_is_trained_with_an_objective_from_outside(tmp_path: Path) -> None:
    lines, real, generated = run_extended("backwards", train, tmp_path)
    assert lines[-1]["next_token_loss"] < lines[0]["next_token_loss"]
    assert lines[-1]["validation_next_token_loss"] > 0
    assert real["labels"][0, :3].tolist() == [-100] * 3
    np.testing.assert_array_equal(real["labels"][0, 3:-1], real["input_ids"][0, 4:])
    assert {name: array.shape for name, array in generated.items()} == {name: array.shape for name, array in real.items()}


def test_sections_that_are_defined_after_it_is_registered_have_its_options() -> None:
    environment = extended_environment("backwards", dict(os.environ))
    done = subprocess.run([sys.executable, "-c", LATE], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.lower()) is True
