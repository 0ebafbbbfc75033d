"""What a step is: a sub-command with its words of help and its arguments, and the job that these become."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.plan import Plan, Project

Arguments = argparse.Namespace


@dataclass(frozen=True)
class Job:
    """One step, ready to run: what it reads, what it writes, and the function that does it and says so in a sentence."""

    run: Callable[[], str]
    inputs: Sequence[Path] = ()
    outputs: Sequence[Path] = ()


@dataclass(frozen=True)
class Step:
    """A sub-command: its words of help, its arguments, and how it becomes a job."""

    help: str
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]]
    job: Callable[[Arguments], Job]
    """Imports nothing heavy before the job runs."""
    records: bool = True
    epilog: str = field(default="")


def argument(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """One argument of a step, as `ArgumentParser.add_argument` takes it."""
    return names, options


def path(name: str, words: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A required argument that names one file or folder."""
    return argument(name, type=Path, required=options.pop("required", True), metavar="PATH", help=words, **options)


def paths(name: str, words: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A required argument that names several files."""
    return argument(name, type=Path, required=True, nargs="+", metavar="PATH", help=words)


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        ValueError: it is none.
    """
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


RECIPE = argument("recipe", metavar="NAME", help="a recipe in recipes/, or smoke/NAME for its small twin")
WORKERS = argument("--workers", type=positive, metavar="N", help="processes; default: every core this process may use")
FINGERPRINT = argument("--fingerprint", metavar="F", help="refuse to run when the recipe's fingerprint is another one")


def plan_of(arguments: Arguments) -> Plan:
    """The plan of the recipe that a command names, refused when it is no longer the one that Snakemake planned with."""
    plan = Project().plan(arguments.recipe)
    wanted = getattr(arguments, "fingerprint", None)
    if wanted and plan.fingerprint != wanted:
        raise RelmError(
            f"recipe {arguments.recipe} has fingerprint {plan.fingerprint}, this command was planned for {wanted}: "
            "it was edited in between; give the snakemake command again"
        )
    return plan
