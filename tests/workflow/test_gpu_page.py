"""docs/gpu.md: its commands are commands, its defaults the code's, and it runs on small data, a CPU in place of the card."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from relm.recipes.project import Project
from relm.recipes.run import OnMachine, Run
from relm.steps import list_steps
from relm.steps.parser import Parser
from small_project import CHECKOUT, Commands, make_project

PAGE = (CHECKOUT / "docs" / "gpu.md").read_text()
COMMANDS = [line for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]
NAME, CARD, NEXT = "shakespeare_char_gpu", "rtx4090", "h100"
STORE = "file:///mnt/share/runs"
# Machines on which the page's run trains are CPUs here; the others stay as they are shipped, and are only planned for.
IN_PLACE = (CARD, NEXT)
DEFAULTS = {
    "not set: float32": None,
    "not set: all logits at once": None,
    "not set: on for `cuda`": None,
    "`dense`": "dense",
    "`false`": False,
    "`true`": True,
}


def words_of(command: str) -> list[str]:
    """Return the program and the words of a command, without variables before it."""
    return [word for word in shlex.split(command, comments=True) if "=" not in word.partition("/")[0] or word.startswith("-")]


def test_the_commands_of_the_page_are_commands() -> None:
    steps = Parser(list_steps())
    programs = {words_of(command)[0] for command in COMMANDS}
    assert programs == {"make", ".", "relm", "snakemake", "hf"}
    for command in COMMANDS:
        program, *words = words_of(command)
        if program == "relm":
            assert steps.parse_args(words).step == words[0]


def test_the_recipe_and_the_machines_of_the_page_are_shipped() -> None:
    project = Project(CHECKOUT)
    names = set(re.findall(rf"{NAME}(?:@[\w-]+)?", "\n".join(COMMANDS)))
    assert names >= {f"{NAME}@{machine}" for machine in (CARD, NEXT, "a100", "a100-8")}
    for name in names:
        assert project.plan(name).recipe.run.device == "cuda"
    assert project.plan(f"{NAME}@a100-8").recipe.run.processes == 8


def test_the_defaults_of_the_page_are_those_of_the_recipe() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", PAGE, re.M)
    assert len(rows) == 5
    for key, default in rows:
        assert getattr(Run(), key) == getattr(OnMachine(), key) == DEFAULTS[default], key


@pytest.fixture
def project(tmp_path: Path) -> Commands:
    """A project in which the page's recipe is a small one, and its cards are CPUs."""
    made = make_project(tmp_path)
    recipes = tmp_path / "recipes"
    shutil.copytree(CHECKOUT / "recipes" / "machines", recipes / "machines")
    for machine in IN_PLACE:
        (recipes / "machines" / f"{machine}.yaml").write_text("title: A CPU in place of a card\ndevice: cpu\n")
    (recipes / f"{NAME}.yaml").write_text("extends: tiny\npretrain: {main: {global_batch_size: 8}}\nrun: {machine: a100}\n")
    return made


@pytest.mark.full
def test_the_page_runs_in_order_with_a_cpu_in_place_of_the_card(project: Commands, tmp_path: Path) -> None:
    for command in COMMANDS:
        if command.startswith("."):
            continue
        if command.startswith("relm pull"):  # on the next machine
            shutil.move(tmp_path / "work" / "runs", tmp_path / "lost")
        if command.startswith("relm continue"):  # from a run that was stopped
            (model,) = (tmp_path / "work" / "runs" / f"{NAME}@{CARD}").glob("*/main/model")
            model.rename(tmp_path / "model")
        done = run(project, command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        if command.startswith("relm continue"):
            (tmp_path / "model").rename(model)
        if command.startswith("relm rehearse"):
            assert " take " in done.stdout
        if "a100" in command:
            assert "  pretrain main " in done.stdout
    assert (tmp_path / "results" / f"{NAME}@{CARD}" / "report.html").exists()
    assert list((tmp_path / "work" / "runs" / f"{NAME}@{NEXT}").glob("*/main/checkpoints/step-*"))


def run(project: Commands, command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the page; make only shows what it would do, in the checkout."""
    folder = project.folder
    command = command.replace(STORE, f"file://{folder}/store")
    if command.startswith("make"):
        command, folder = command.replace("make", "make -n", 1), CHECKOUT
    if "snakemake" in command:
        command += " --cores 1 --nocolor"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=project.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
        check=False,
    )
