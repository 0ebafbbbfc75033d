"""`relm command`: the command of a step, as a published result records it or as the recipe's plan will have it.

A published result may be somebody else's, and a shell may be given the lines: what is no step of the graph is refused.
"""

import difflib
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relm.artifact import read_json
from relm.containers.lock import LOCK, OVERRIDE, find_role
from relm.containers.shell_line import DockerLine, docker_line, plain_line
from relm.devices.ranks import words_of_step
from relm.errors import RelmError
from relm.recipes.checkout import COMMIT
from relm.recipes.project import Project
from relm.recipes.redaction import mask_value
from relm.recipes.run_name import is_execution
from relm.steps.recorded_steps import comment, is_plain, require_graph_step

SAYS_COMMAND = "Shell command: "  # before each command that Snakemake would run
SECONDS = 600


@dataclass(frozen=True)
class StepCommand:
    """One job's command."""

    argv: Sequence[str]
    """From the word `relm` on, or from what starts its processes."""
    makes: str
    """Its first output."""
    image: str | None = None
    """That it ran in."""
    is_recorded: bool = False
    """Somebody, perhaps somebody else, recorded it; a plan is the checkout's own."""
    commit: str | None = None
    """Commit of the code that recorded it, if the record has one."""

    @property
    def step(self) -> str:
        """The step's name."""
        return words_of_step(self.argv)[0]


def published(provenance: Path) -> list[StepCommand]:
    """The commands that `provenance.json` records, in order of the data's way.

    Raises:
        RelmError: it is not what relm writes; a control character in a word, a path or an image is enough.
    """
    try:
        return [_recorded(record) for record in read_json(provenance)["steps"] if record["step"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RelmError(f"{provenance}: not what `report` writes ({type(error).__name__}: {error}); publish it anew") from None


def _recorded(record: Mapping[str, Any]) -> StepCommand:
    commit = (record.get("code") or {}).get("commit")
    found = StepCommand(
        list(record["argv"]),
        record["outputs"][0]["path"],
        (record.get("container") or {}).get("image"),
        is_recorded=True,
        commit=commit if COMMIT.fullmatch(commit or "") else None,
    )
    image = "" if found.image is None else found.image
    if strange := [told for told in (*found.argv, found.makes, image) if not is_plain(told)]:
        raise ValueError(f"{strange[0]!r:.200} is no text without control characters")
    if found.step != record["step"]:
        raise ValueError(f"step {record['step']!r:.200} has the command of {found.step!r:.200}")
    return found


def planned(project: Project, name: str) -> list[StepCommand]:
    """The commands that Snakemake would run for a recipe if nothing of it were there; nothing is run.

    Raises:
        RelmError: there is no such recipe, or no workflow here.
    """
    plan = project.plan(name)
    target = plan.results
    if not Path("Snakefile").exists():
        raise RelmError("Snakefile: no such file; give the command in the checkout")
    command = [sys.executable, "-m", "snakemake", str(target), "--dry-run", "--forceall", "--printshellcmds", "--nocolor"]
    if execution := [change.setting for change in plan.changes if is_execution(change.setting)]:
        command += ["--config", f"set={','.join(execution)}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise RelmError(f"snakemake cannot plan {target}: {' / '.join(done.stdout.strip().splitlines()[-3:])}")
    lines = [line.removeprefix(SAYS_COMMAND) for line in done.stdout.splitlines() if line.startswith(SAYS_COMMAND)]
    commands = [_planned(shlex.split(line)) for line in lines]
    return [found for found in commands if found.step not in ("publish", "check")]


def _planned(words: Sequence[str]) -> StepCommand:
    """A rule's command as the step will record it."""
    argv = mask_value(list(words[2:] if tuple(words[:3]) == ("python", "-m", "relm") else words))
    option = next((option for option in ("--output", "--train") if option in argv), None)
    return StepCommand(argv, argv[argv.index(option) + 1] if option else "")


def describe_command(
    project: Project, name: str, step: str | None, which: str | None, only: str | None, trust_image: bool = False
) -> str:
    """The text of `relm command NAME STEP WHICH`: lines that a shell in the checkout can run, and what they are.

    Args:
        which: of several jobs of a step: its number, from 1, or a part of what it makes.
        only: ``plain`` or ``docker``: this line and nothing else.
        trust_image: name the recorded image though the checkout's lock does not have it.

    Raises:
        RelmError: nothing fits, several do, the step has no image, or what is recorded is no step of the graph.
    """
    provenance = Path("results") / name / "provenance.json"
    commands = published(provenance) if provenance.exists() else planned(project, name)
    where = f"recorded in {provenance}" if provenance.exists() else "planned, not published yet"
    if step is None:
        return comment("\n".join([f"{name}: {where}", *_listed(commands), f"relm command {name} STEP prints one"]))
    found = choose_command(name, commands, step, which)
    if found.is_recorded:
        _require_graph_step(found, provenance)
    docker = _docker_line(found, project, trust_image)
    if only == "docker" and docker.line is None:
        raise RelmError(f"step {step} of {name} has no image to run in: {docker.caveat}")
    if only:
        return str(docker.line) if only == "docker" else plain_line(found.argv, os.environ)
    in_image = [comment(f"in its image, {docker.image}:"), docker.line] if docker.line else ["# in no image:"]
    told = [comment(f"{step} of {name}, {where}; in the checkout:"), plain_line(found.argv, os.environ), "", *in_image]
    return "\n".join([*map(str, told), *([comment(docker.caveat)] if docker.caveat else [])])


def _require_graph_step(found: StepCommand, provenance: Path) -> None:
    try:
        require_graph_step(found.argv, found.commit)
    except RelmError as error:
        raise RelmError(f"{provenance}: {textwrap.shorten(str(error), 600)}") from None


def _docker_line(found: StepCommand, project: Project, trust_image: bool) -> DockerLine:
    """The line of `docker run`; none where the step ran in an image that the checkout does not know and nobody vouches for."""
    if found.image is not None and not trust_image:
        try:
            find_role(found.image)
        except RelmError:
            why = f"it ran in {found.image}, which neither {LOCK} nor {OVERRIDE} has; --trust-image prints its line"
            return DockerLine(None, caveat=why)
    return docker_line(found.argv, project, found.image, os.environ)


def _listed(commands: Sequence[StepCommand]) -> list[str]:
    """Each step with what its jobs make."""
    counts: dict[str, list[StepCommand]] = {}
    for command in commands:
        counts.setdefault(command.step, []).append(command)
    width = max((len(step) for step in counts), default=0)
    return [
        f"  {step:<{width}}  {jobs[0].makes}{f' and {len(jobs) - 1} more' if len(jobs) > 1 else ''}"
        for step, jobs in counts.items()
    ]


def choose_command(name: str, commands: Sequence[StepCommand], step: str, which: str | None) -> StepCommand:
    """The one job that is meant."""
    jobs = [command for command in commands if command.step == step]
    if not jobs:
        steps = list(dict.fromkeys(command.step for command in commands))
        near = difflib.get_close_matches(step, steps, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(steps)}"
        raise RelmError(f"{name} has no step {step!r}; {hint}")
    if which is not None and which.isdecimal():
        fitting = jobs[int(which) - 1 : int(which)] if int(which) else []
    else:
        fitting = [job for job in jobs if which is None or which in job.makes]
    if len(fitting) == 1:
        return fitting[0]
    if fitting and which is None:
        found = f"step {step} of {name} has {len(jobs)} jobs"
    else:
        found = f"{len(fitting) or 'no'} jobs of step {step} of {name} fit {which!r}"
    listed = [f"  {number}  {job.makes}" for number, job in enumerate(jobs, 1)]
    raise RelmError("\n".join([f"{found}; say which, by number or by a part of what it makes:", *listed]))
