"""Conventions of Snakemake: the workflow as a module of another one, its entry in the catalogue, and the forks' own checks."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from small_project import CHECKOUT, Commands

USER = """
module pretraining:
    snakefile: "{checkout}/Snakefile"
    config: config

use rule * from pretraining as pretraining_*

rule figure:
    default_target: True
    input: "results/tiny+seed=3"
    output: "figure.svg"
    shell: "touch {{output}}"
"""


def read(name: str) -> Any:
    return yaml.safe_load((CHECKOUT / name).read_text())


def test_another_workflow_can_use_this_one_as_a_module(project: Commands) -> None:
    for name in ("Snakefile", "src", "profiles"):
        (project.folder / name).unlink()
    (project.folder / "Snakefile").write_text(USER.format(checkout=CHECKOUT))
    done = project.snakemake("figure", "-n", "-p", "--config", "set=run.threads=2", "mine=a key of that workflow")
    assert done.returncode == 0, done.stdout
    assert "rule pretraining_pretrain:" in done.stdout
    assert "relm pretrain tiny+seed=3 " in done.stdout
    assert " --set run.threads=2 " in done.stdout


def test_the_catalogue_and_its_readme_name_what_the_workflow_has() -> None:
    usage = read(".snakemake-workflow-catalog.yml")["usage"]
    assert {"mandatory-flags", "software-stack-deployment", "report"} <= set(usage)
    assert usage["software-stack-deployment"]["apptainer"]
    assert "apptainer" in (CHECKOUT / "docs" / "containers.md").read_text()
    assert "`set`" in (CHECKOUT / "config" / "README.md").read_text()


def test_forks_run_what_make_has(tmp_path: Path) -> None:
    steps = [step for job in read(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    for command in commands:
        if command.startswith("make "):
            done = subprocess.run(["make", "-n", "-C", CHECKOUT, *command.split()[1:]], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    assert any("unshare --net" in command and "snakemake all --dry-run" in command for command in commands)


@pytest.mark.full
def test_every_recipe_is_planned_without_network(tmp_path: Path) -> None:
    for name in ("Snakefile", "src", "profiles", "containers", "recipes"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    commands = Commands(tmp_path)
    done = subprocess.run(
        ["unshare", "--net", "--map-root-user", *commands.command("all", "-n", "--quiet", "rules")],
        cwd=tmp_path,
        env=commands.environment,
        text=True,
        capture_output=True,
    )
    if "unshare" in done.stderr and done.returncode != 0:
        pytest.skip(f"this machine forbids network namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
