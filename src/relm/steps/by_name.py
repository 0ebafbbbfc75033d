"""`relm STEP NAME`: run one of a recipe's jobs, or print its command, with the files and options of the plan."""

import argparse
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relm.containers.shell_line import docker_line, plain_line
from relm.devices import ranks
from relm.devices.ipu.instances import launch
from relm.errors import RelmError
from relm.plan.jobs import RecipeJob
from relm.plan.run_jobs import list_jobs
from relm.recipes.evaluation.evaluations import EVALUATIONS
from relm.recipes.project import Project
from relm.recipes.redaction import mask_value
from relm.recipes.run_folder import WEIGHTS
from relm.recipes.run_name import RunName
from relm.steps import list_steps
from relm.steps.contract import recipe_name, require_checkout

BOTH = "both"


@dataclass(frozen=True)
class NamedStep:
    """A step of a recipe, as the words of a command name it."""

    recipe: str
    """The run's name, with settings."""
    which: str | None
    """Number, from 1, of one of several jobs, or a part of what it makes."""
    printed: str | None
    """`plain`, `docker` or `both`: the command is printed and not run."""
    options: list[str]
    """Options of the step, which override those of the plan."""


def read_words(step: str, words: Sequence[str]) -> NamedStep | None:
    """Return the parts of `NAME [WHICH] [--set KEY=VALUE] [--print [plain|docker]] [OPTION ...]`; None without a NAME."""
    reader = argparse.ArgumentParser(prog=f"relm {step}", add_help=False, allow_abbrev=False)
    reader.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    reader.add_argument("--print", nargs="?", const=BOTH, choices=(BOTH, "plain", "docker"))
    known, rest = reader.parse_known_args(words)
    if not rest or rest[0].startswith("-"):
        return None
    name = str(RunName.parse(recipe_name(rest.pop(0))).vary(known.set))
    which = rest.pop(0) if rest and rest[0] and not rest[0].startswith("-") else None
    return NamedStep(name, which, known.print, rest)


def find_command(project: Project, step: str, named: NamedStep) -> list[str]:
    """Return the whole command of a job, with the launcher of its processes if there are several."""
    require_checkout()
    plan = project.plan(named.recipe)
    if list_steps()[step].reads_result:
        if named.which is not None:
            raise RelmError(f"{named.which}: unknown argument; {step} takes a NAME and options")
        if not (plan.results / WEIGHTS).exists():
            raise RelmError(
                f"{plan.results}/{WEIGHTS}: no such file; `snakemake {plan.results}` trains and publishes that model, and "
                "--model takes any other"
            )
        return ["relm", step, "--model", str(plan.results), *named.options]
    seeds = {run.fingerprint: run.recipe.seed for run in plan.runs} if len(plan.runs) > 1 else {}
    job = choose_job(named.recipe, list(list_jobs(plan)), step, named.which, seeds)
    if ranks.ranks() > 1:  # srun or torchrun has started the processes
        return ["relm", *job.command(), *named.options]
    started = launch(job.run, job.run.processes if job.run else 1, job.hosts)
    if job.hosts > 1 and named.printed is None and "SLURM_JOB_ID" not in os.environ:
        raise RelmError(
            f"{plan.name}: its machine has {job.hosts} hosts, so the command belongs in a job of Slurm with as many nodes; "
            f"--print shows it, and snakemake {plan.results} --workflow-profile profiles/slurm submits such a job"
        )
    return [*(started[2:] if started[0] == "python" else started), *job.command(), *named.options]


def choose_job(name: str, jobs: Sequence[RecipeJob], step: str, which: str | None, seeds: Mapping[str, int] = {}) -> RecipeJob:
    """Return the job of a step that `which` selects; `seeds` has fingerprint -> seed of several runs, for the message."""
    fitting = [job for job in jobs if step == job.step]
    if not fitting:
        if any(declaration.command == step for declaration in EVALUATIONS):
            raise RelmError(f"recipe {name} has no evaluation {step}; add it to `evaluate`, or pass its model and files")
        steps = list(dict.fromkeys(job.step for job in jobs))
        near = difflib.get_close_matches(step, steps, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(steps)}"
        raise RelmError(f"{name} has no step {step!r}; {hint}")
    if which is not None and which.isdecimal():
        chosen = fitting[int(which) - 1 : int(which)] if int(which) else []
    else:
        chosen = [job for job in fitting if which is None or which in str(job.makes)]
    if len(chosen) == 1:
        return chosen[0]
    found = f"step {step} of {name} has {len(fitting)} jobs"
    if which is not None:
        found = f"{which!r} names {len(chosen) or 'none'} of the jobs of step {step} of {name}"
    listed = []
    for number, job in enumerate(fitting, 1):
        seed = next((f" (seed {seed})" for run, seed in seeds.items() if run in job.makes.parts), "")
        listed.append(f"  {number}  {job.makes}{seed}")
    raise RelmError("\n".join([f"{found}; choose one by its number or a part of its output:", *listed]))


def describe_command(project: Project, argv: Sequence[str], printed: str) -> str:
    """Return the lines of a command that a shell in the checkout can run: `plain`, as `docker` run, or `both`."""
    words = mask_value(list(argv))
    plain, docker = plain_line(words, os.environ), docker_line(words, project, environment=os.environ)
    if printed == "plain":
        return plain
    if printed == "docker":
        if docker.line is None:
            raise RelmError(f"this step has no image: {docker.caveat}; use --print plain")
        if docker.caveat:
            print(f"# {docker.caveat}", file=sys.stderr)
        return docker.line
    in_image = [f"# in its image, {docker.image}:", docker.line] if docker.line else ["# in no image:"]
    caveat = [f"# {line}" for line in (docker.caveat or "").splitlines()]
    return "\n".join(["# in the checkout:", plain, "", *in_image, *caveat])
