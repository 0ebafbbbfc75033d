"""An architecture that is declared outside the package is trained and is known to recipes."""

from pathlib import Path
from typing import Any

from extended_process import run_extended

from relm.artifact import read_json
from relm.examples.manifest import TokenizerFacts
from relm.recipes.datasets import load_dataset
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.smoke import smoke_twin
from relm.training.architecture import configuration, unset_model
from relm.training.arithmetic import parameter_count
from tiny_runs import RECIPE, TinyRun, write_examples
from twin_keys import changed_keys, may_change

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL = {"architecture": "averager", "layers": 1, "heads": 1, "hidden_size": 24, "window": 3}


def recipe_with(model: dict[str, Any]) -> dict[str, Any]:
    return {**RECIPE, "model": model}


class AveragerRun(TinyRun):
    """A tiny run of the toy architecture."""

    @property
    def recipe(self) -> Recipe:
        return Recipe.model_validate(recipe_with(MODEL))


def train(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train the tiny recipe with the toy architecture; return the rows of its log, and its configuration."""
    run = AveragerRun(folder / "run", write_examples(folder / "examples", seed=0))
    run.train()
    return run.lines(), read_json(run.model_folder / "config.json")


def counts() -> tuple[int, int]:
    """Return the parameter count of the toy model by arithmetic, and that of the real model."""
    config = configuration(Recipe.model_validate(recipe_with(MODEL)), TokenizerFacts("", 257, 256))
    return parameter_count(config), unset_model(config).parameter_count()


def twin() -> tuple[int, list[str]]:
    """Return the window of the smoke twin, and the keys that it changed but must not."""
    project = Project(CHECKOUT)
    recipe = Recipe.model_validate(recipe_with(MODEL))
    small = smoke_twin(recipe, load_dataset(project.path_of("data", "tinyshakespeare")))
    changed = changed_keys(recipe.model_dump(), small.model_dump())
    return small.model_dump()["model"]["window"], [path for path in changed if not may_change(path)]


def test_a_model_of_an_architecture_from_outside_is_trained(tmp_path: Path) -> None:
    lines, config = run_extended("averager", train, tmp_path)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert config["model_type"] == "averager"


def test_its_parameters_are_counted_without_the_model() -> None:
    assert run_extended("averager", counts) == (257 * 24, 257 * 24)


def test_its_smoke_twin_has_the_declared_sizes() -> None:
    assert run_extended("averager", twin) == (2, [])
