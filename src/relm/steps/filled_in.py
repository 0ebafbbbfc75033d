"""`relm STEP NAME`: the command of one of a recipe's jobs, filled in with what the graph knows."""

import argparse
import json
from collections.abc import Sequence

from relm.errors import RelmError
from relm.recipes.evaluations import EVALUATIONS
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.run_folder import WEIGHTS
from relm.recipes.run_name import RunName
from relm.steps import list_steps
from relm.steps.contract import recipe_name
from relm.steps.parser import parser
from relm.steps.step_commands import StepCommand, choose_command, planned


def fill_in(project: Project, step: str, words: Sequence[str]) -> list[str]:
    """Return the whole command of a job, from `relm` on or from what starts several processes of it.

    Args:
        words: the recipe's name and, of several jobs, which one, by number or by a part of what it makes; then options of the
            step, which count over those of the graph.

    Raises:
        RelmError: there is no such recipe, its graph has no such step, or several jobs of it.
    """
    name, settings, rest = take_settings(words)
    which = rest.pop(0) if rest and not rest[0].startswith("-") else None
    recipe = str(RunName.parse(recipe_name(name)).vary(settings))
    evaluation = next((declared.name for declared in EVALUATIONS if declared.command == step), None)
    commands = planned(project, recipe)
    if evaluation is not None:
        commands = [found for found in commands if _evaluates(found, evaluation)]
        if not commands:
            raise RelmError(
                f"recipe {recipe} has no evaluation {evaluation}; add it to `evaluate`, or give its model and files"
            )
        step = "evaluate"
    found = choose_command(recipe, commands, step, which)
    return [*map(_in_work_folder, leave_out_given(found.argv, rest)), *rest]


def fill_in_result(project: Project, step: str, words: Sequence[str]) -> list[str]:
    """Return the whole command, from `relm` on, of a step that reads the published model of a recipe.

    Args:
        words: the recipe's name; then options of the step.

    Raises:
        RelmError: there is no such recipe, or its results are not there.
    """
    name, settings, rest = take_settings(words)
    plan = project.plan(str(RunName.parse(recipe_name(name)).vary(settings)))
    if not (plan.results / WEIGHTS).exists():
        raise RelmError(
            f"{plan.results}/{WEIGHTS}: no such file; `snakemake {plan.results}` trains and publishes that model, and --model "
            "takes any other"
        )
    return ["relm", step, "--model", str(plan.results), *rest]


def leave_out_given(command: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return a step's command without the options of several values that the user's words have, which would add up.

    >>> leave_out_given(["relm", "inspect", "--documents", "a", "b", "--output", "c"], ["--documents", "d"])
    ['relm', 'inspect', '--documents', 'a', 'b', '--output', 'c']
    >>> leave_out_given(["relm", "pregenerate", "--documents", "a", "b", "--output", "c"], ["--doc=d"])
    ['relm', 'pregenerate', '--output', 'c']
    """
    step = next((word for word in command[command.index("relm") + 1 :] if not word.startswith("-")), "")
    reader = parser(list_steps()).parsers.get(step)
    several = [name for each in reader._actions if each.nargs in ("+", "*") for name in each.option_strings] if reader else []
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    kept, leaves = list[str](), False
    for word in command:
        if word.startswith("--"):
            leaves = word in several and any(word.startswith(name) for name in given)
        if not leaves:
            kept.append(word)
    return kept


def _in_work_folder(word: str) -> str:
    """Return a word of a printed command, whose paths begin with work/, with the path of this run's work folder."""
    return str(work_folder() / word.removeprefix("work/")) if word.startswith("work/") else word


def take_settings(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return a recipe's name, the settings of `--set`, and the other words."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--set", action="append", default=[])
    found, rest = reader.parse_known_args(list(words[1:]))
    return words[0], found.set, rest


def _evaluates(command: StepCommand, evaluation: str) -> bool:
    argv = list(command.argv)
    return command.step == "evaluate" and json.loads(argv[argv.index("--job") + 1])["evaluation"] == evaluation
