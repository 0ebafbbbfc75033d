"""docs/first-paper.md: its recipe is nanoGPT's run, and its commands run in order on small data."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from relm.recipes.project import Project
from relm.steps import list_steps
from relm.steps.parser import Parser
from small_project import CHECKOUT, Commands

PAGE = (CHECKOUT / "docs" / "first-paper.md").read_text()
RECIPE = re.findall(r"^```yaml\n# recipes/my_shakespeare\.yaml\n(.*?)^```$", PAGE, re.M | re.S)[0]
SEEDS = re.findall(r"^```\n(seeds:.*?\n)```$", PAGE, re.M | re.S)[0]
COMMANDS = [
    command
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
    for command in ([block] if block.startswith("python") else block.splitlines())
]
# What makes the run small; everything else is the page's.
SMALLER = (
    ("steps: 2000", "steps: 4"),
    ("warmup_steps: 101, decay_end: 2001", "warmup_steps: 1, decay_end: 5"),
    ("layers: 4, heads: 4, hidden_size: 128, positions: 64", "layers: 1, heads: 2, hidden_size: 16, positions: 16"),
    ("sequence_length: 64", "sequence_length: 16"),
    ("evaluate: [random_windows, held_out, samples]", "evaluate: [random_windows]"),
    ("run: {machine: cpu, threads: 2}", "run: {machine: cpu, threads: 1}"),
)
DATASET = """
title: A small text
licence: CC0-1.0
language: en
format: text_files
held_out_end: 0.1
folder: text
"""


def test_the_recipe_of_the_guide_trains_what_the_shipped_one_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "machines"):
        (tmp_path / "recipes").mkdir(exist_ok=True)
        (tmp_path / "recipes" / name).symlink_to(CHECKOUT / "recipes" / name)
    (tmp_path / "recipes" / "my_shakespeare.yaml").write_text(RECIPE)
    plan = Project(tmp_path).plan("my_shakespeare")
    assert plan.fingerprint == Project(CHECKOUT).plan("shakespeare_char").fingerprint
    (tmp_path / "recipes" / "my_shakespeare.yaml").write_text(add_seeds(RECIPE))
    runs = Project(tmp_path).plan("my_shakespeare").runs
    shipped = Project(CHECKOUT).plan("shakespeare_char").runs
    assert [run.fingerprint for run in runs] == [run.fingerprint for run in shipped[:3]]


def test_the_commands_of_the_guide_are_commands() -> None:
    steps = Parser(list_steps())
    for command in COMMANDS:
        program, *words = shlex.split(command, comments=True)
        assert program in ("snakemake", "relm", "python"), command
        if program == "relm":
            assert steps.parse_args(words).step == words[0]


def add_seeds(recipe: str) -> str:
    return recipe.replace("seed: 1\n", f"seed: 1\n{SEEDS}", 1)


@pytest.mark.full
def test_the_guide_runs_from_the_recipe_to_the_verdict_on_small_data(tmp_path: Path) -> None:
    for name in ("Snakefile", "src", "profiles", "containers"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "recipes" / "data").mkdir(parents=True)
    (tmp_path / "recipes" / "machines").symlink_to(CHECKOUT / "recipes" / "machines")
    (tmp_path / "recipes" / "data" / "tinyshakespeare_text.yaml").write_text(DATASET)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "play.txt").write_text((CHECKOUT / "LICENSE").read_text() * 4)
    recipe = RECIPE
    for page, small in SMALLER:
        assert page in recipe, page
        recipe = recipe.replace(page, small)
    file = tmp_path / "recipes" / "my_shakespeare.yaml"
    file.write_text(recipe)
    commands = Commands(tmp_path)
    seen: list[str] = []
    for command in COMMANDS:
        program, *words = shlex.split(command, comments=True)
        if command in seen:  # the second time, the recipe has its seeds
            file.write_text(add_seeds(recipe))
            assert commands.jobs(*words)["pretrain"] == 2
        seen.append(command)
        done = run(commands, program, words)
        assert done[0] == 0, f"{command}\n{done[1]}"
    results = tmp_path / "results"
    variations = [
        "my_shakespeare+pretrain.main.optimizer.learning_rate=0.002",
    ]
    assert sorted(path.name for path in results.iterdir()) == ["my_shakespeare", *variations, "smoke"]
    verdict = (results / "my_shakespeare" / "verify.json").read_text()
    assert '"z"' in verdict or '"interval"' in verdict


def run(commands: Commands, program: str, words: list[str]) -> tuple[int, str]:
    """Return the exit status and the output of one of the page's commands."""
    if program == "snakemake":
        done = commands.snakemake(*words)
        return done.returncode, done.stdout
    started = [sys.executable, *(["-m", "relm"] if program == "relm" else []), *words]
    told = subprocess.run(
        started, cwd=commands.folder, env=commands.environment, text=True, capture_output=True, timeout=240, check=False
    )
    return told.returncode, told.stdout + told.stderr
