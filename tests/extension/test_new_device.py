"""A device that is declared outside the package trains a run, and recipes, evaluations and `relm doctor` know it."""

import contextlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

from extended_process import run_extended

from relm.cli import main
from relm.containers.placement import training_role
from relm.devices.contract import open_device
from relm.devices.peaks import find_peak_flops
from relm.evaluation.execution import Execution
from relm.provenance import surroundings
from relm.recipes.datasets import Dataset
from relm.recipes.devices import DEVICES, find_evaluation_device
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run import Run
from relm.recipes.smoke import smoke_twin
from small_project import make_project
from tiny_runs import RECIPE, TinyRun, write_examples

PHASE = {"steps": 4, "schedule": {"name": "constant", "warmup_steps": 0, "floor": 0.0}}
DATASET = {"title": "t", "licence": "l", "language": "en", "format": "text_files", "folder": "texts"}


def train(folder: Path, device: str) -> TinyRun:
    """Train the tiny recipe on a device."""
    examples = write_examples(folder / "examples", seed=0)
    run = TinyRun(folder / "run", examples, {"pretrain": {"main": PHASE}, "run": {"device": device}})
    run.train()
    return run


def recorded_device(device: str) -> str:
    """Return the device in the record of a step that opened one."""
    if device:
        open_device(Run(device=device)).close()
    return surroundings.device()


def outputs_of(*commands: list[str]) -> list[str]:
    """Run commands in this process; return the output of each."""
    found = []
    for words in commands:
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
            main(words)
        found.append(printed.getvalue())
    return found


def facts() -> dict[str, Any]:
    """Return the facts that other packages derive from the declaration."""
    recipe, dataset = Recipe.model_validate({**RECIPE, "run": {"device": "staged"}}), Dataset.model_validate(DATASET)
    twin = smoke_twin(recipe, dataset)
    os.environ["STAGED_ON"] = "CPU"
    return {
        "images": [training_role(recipe), DEVICES[find_evaluation_device("staged")].image],
        "evaluates on": Execution("staged").open().describe()["device"],
        "twin trains on": twin.run.device,
        "twin trains on, emulated": smoke_twin(recipe, dataset).run.device,
        "peaks": [find_peak_flops("Stage 1", precision) for precision in ("float32", "bfloat16")],
    }


def test_a_run_is_trained_on_a_device_from_outside_to_the_same_numbers(tmp_path: Path) -> None:
    staged, plain = (run_extended("staged_device", train, tmp_path / device, device) for device in ("staged", "cpu"))
    assert [line["loss"] for line in staged.lines()] == [line["loss"] for line in plain.lines()]
    assert staged.sha256() == plain.sha256()
    assert json.loads((staged.folder / "main" / "device.json").read_text())["processes"][0]["copied"] > 0


def test_the_record_of_a_step_names_its_hardware() -> None:
    recorded = [run_extended("staged_device", recorded_device, device) for device in ("staged", "cpu", "")]
    assert recorded == ["Stage 1", "cpu", "cpu"]


def test_commands_know_it() -> None:
    doctor, held_out = run_extended("staged_device", outputs_of, ["doctor"], ["held-out", "--help"])
    assert re.search("^staged +yes: wherever there is a CPU$", doctor, re.M)
    assert "--device {cpu,cuda,staged" in held_out


def faults_of_a_run(folder: Path) -> list[str | None]:
    """Return why its run cannot be trained, without and with a lack that the device states."""
    from relm.graph.environments import TrainingPlace, find_fault  # it loads the extensions of the process that imports it

    (folder / "recipes" / "staged.yaml").write_text("extends: tiny\nrun: {device: staged}\n")
    plan = Project(folder).plan("staged")
    place = TrainingPlace()
    before = find_fault(plan, place)
    os.environ["STAGE_LACKS"] = "there is no curtain"
    return [before, find_fault(plan, place), find_fault(plan, place._replace(uses_environment=False))]


def test_it_states_itself_what_an_environment_lacks(tmp_path: Path) -> None:
    make_project(tmp_path)
    lack = "staged: this environment cannot train on run.device: staged: there is no curtain"
    assert run_extended("staged_device", faults_of_a_run, tmp_path) == [None, lack, None]


def test_its_declaration_decides_evaluations_smoke_twins_and_peaks() -> None:
    assert run_extended("staged_device", facts) == {
        "images": ["cpu", "cpu"],
        "evaluates on": "staged",
        "twin trains on": "cpu",
        "twin trains on, emulated": "staged",
        "peaks": [0.5e12, None],
    }
