"""The lists of CONTRIBUTING.md are complete: a toy that touches only the listed files works."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from small_project import CHECKOUT, Commands

OPTIMIZER = '''
"""Steps in the direction of the gradient's sign."""

import torch

class SignOptimizer(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])

def build_sign(groups, settings):
    return SignOptimizer(groups, {"lr": settings.learning_rate})
'''
DECLARED_OPTIMIZER = (
    '    OptimizerDeclaration("sign", "relm.training.optimizers.sign:build_sign", lambda shape, settings: 0),\n'
)
EVALUATION = '''
"""The number of parameters of a model."""

from safetensors.numpy import load_file

from relm.artifact import sha256_of
from relm.evaluation.result import Result

def evaluate_size(*, model_folder, output, task, options, execution):
    weights = model_folder / "model.safetensors"
    parameters = sum(tensor.size for tensor in load_file(weights).values()) // options.unit
    Result(task=task, protocol={}, figures={"parameters": parameters}, model_sha256=sha256_of(weights)).write(output)
    return f"{parameters} parameters"
'''
OPTIONS_OF_EVALUATION = '''class Size(Section):
    """The size of the model."""

    unit: int = Field(default=1, gt=0)
    """Divides it."""


'''
DECLARED_EVALUATION = """    EvaluationDeclaration(
        name="size", summary="the number of parameters", run="relm.evaluation.size:evaluate_size", inputs=(), options=Size
    ),
"""
DATASET = """
title: One poem
licence: CC0-1.0
language: en
format: text_lines
held_out_one_in: 2
files:
  poem.txt:
    sha256: {sha256}
    size: {size}
    sources: [{{url: "https://example.org/poem.txt"}}]
"""


def listed_files(kind: str, **names: str) -> set[str]:
    """Return the files that CONTRIBUTING.md lists for something new, with its names inserted."""
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paragraph = text[text.index(f"**{kind}.**") :].split("\n\n")[0]
    files = re.findall(r"^- `([^`]+)`", paragraph, re.M)
    assert files, paragraph
    return {re.sub("NAME|MODEL", lambda match: names[match.group()], file) for file in files}


class Checkout:
    """A copy of the package that a toy is added to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(CHECKOUT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        self.touched: set[str] = set()

    def write(self, file: str, content: str) -> None:
        """Add a file."""
        path = self.folder / file
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self.touched.add(file)

    def insert(self, file: str, before: str, line: str) -> None:
        """Insert a line before the first occurrence of a text."""
        path = self.folder / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, line + before, 1))
        self.touched.add(file)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the copy's relm."""
        environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "relm", *command], cwd=cwd, env=environment, text=True, capture_output=True, timeout=200
        )


@pytest.fixture
def copy(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_an_optimizer_touches_the_listed_files_and_trains(copy: Checkout, project: Commands) -> None:
    copy.write("src/relm/training/optimizers/sign.py", OPTIMIZER)
    copy.insert("src/relm/recipes/optimization.py", '    OptimizerDeclaration("sgd"', DECLARED_OPTIMIZER)
    assert copy.touched == listed_files("An optimizer", NAME="sign")
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(re.sub(r"optimizer: \{[^}]*\}", "optimizer: {name: sign, learning_rate: 0.001}", recipe.read_text()))
    assert "name: sign" in recipe.read_text()
    done = copy.run("rehearse", "smoke/tiny", "--steps", "5", cwd=project.folder)
    assert done.returncode == 0, done.stderr
    assert "steps" in done.stdout


def test_a_dataset_touches_the_listed_file_and_is_extracted(copy: Checkout, tmp_path: Path) -> None:
    content = "".join(f"Line {number} of the poem.\n" for number in range(30)).encode()
    source = tmp_path / "poem.txt"
    source.write_bytes(content)
    copy.write("recipes/data/poem.yaml", DATASET.format(sha256=hashlib.sha256(content).hexdigest(), size=len(content)))
    assert copy.touched == listed_files("A dataset", NAME="poem")
    outputs = ["--train", "train.jsonl", "--held-out", "held_out.jsonl"]
    done = copy.run("extract", "--dataset", "recipes/data/poem.yaml", "--source", str(source), *outputs, cwd=copy.folder)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for name in outputs[1::2] for line in (copy.folder / name).read_text().splitlines()]
    assert len(lines) == 30


def test_an_evaluation_touches_the_listed_files_and_runs(copy: Checkout, project: Commands) -> None:
    copy.write("src/relm/evaluation/size.py", EVALUATION)
    declarations, sections = "src/relm/recipes/evaluation/evaluations.py", "src/relm/recipes/recipe.py"
    copy.insert(declarations, "class Diacritics(", OPTIONS_OF_EVALUATION)
    copy.insert(declarations, '    EvaluationDeclaration(\n        name="held_out"', DECLARED_EVALUATION)
    copy.insert(
        sections, "from relm.recipes.evaluation.evaluations import", "from relm.recipes.evaluation.evaluations import Size\n"
    )
    copy.insert(sections, "    random_windows: RandomWindows", '    size: Size = Size()\n    """The size of the model."""\n')
    assert copy.touched == listed_files("An evaluation", NAME="size")

    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("[held_out, samples]", "[size]\nsize: {unit: 2}"))
    planned = project.snakemake("results/tiny", "--dry-run", "--printshellcmds", PYTHONPATH=str(copy.folder / "src"))
    assert '"evaluation":"size","options":{"unit":2}' in planned.stdout

    save_file({"weights": np.zeros((6, 2), np.float32)}, project.folder / "model.safetensors")
    done = copy.run("size", "--model", ".", "--unit", "2", "--output", "size.json", cwd=project.folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((project.folder / "size.json").read_text())["figures"] == {"parameters": 6}
