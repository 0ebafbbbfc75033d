"""Names of runs, as in `results/NAME`: a recipe, possibly varied, possibly its smoke twin, possibly on a named machine."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from relm.recipes.section import NAME

SMOKE = "smoke/"
NOT_RECIPES = ("smoke", "reference", "papers")
"""Folders of `results/` that do not belong to a recipe."""
EXECUTION = ("run", "on")
"""Sections of a recipe that say where and how a run is executed; settings of them name no other run."""
SETTING = r"[A-Za-z0-9_][A-Za-z0-9_.-]*=[A-Za-z0-9_.,=%\[\]-]+"
VARIED_NAME = rf"{NAME.pattern}(\+{SETTING})*(@{NAME.pattern})?"
RUN_NAME = rf"({SMOKE})?{VARIED_NAME}"
"""Pattern of a run's name."""


class RunName(NamedTuple):
    """The parts of a run's name.

    >>> RunName.parse("smoke/tiny+seed=2@h100")
    RunName(recipe='tiny', is_twin=True, machine='h100', settings=('seed=2',))
    >>> str(RunName("tiny", False, None))
    'tiny'
    >>> str(RunName("tiny", False, None, ("title=a/b", "seed=2")))
    'tiny+title=a%2Fb+seed=2'
    """

    recipe: str
    """Name of a file in `recipes/`."""
    is_twin: bool
    """True for the smoke twin of the recipe."""
    machine: str | None
    """Name of a file in `recipes/machines/`; None: the machine that the recipe names."""
    settings: tuple[str, ...] = ()
    """Each KEY=VALUE in which the run varies from the recipe's file, VALUE as YAML."""

    @classmethod
    def parse(cls, name: str) -> "RunName":
        """Return the parts of a run's name; whether they exist is not checked."""
        varied, at, machine = name.removeprefix(SMOKE).partition("@")
        recipe, *settings = varied.split("+")
        return cls(recipe, name.startswith(SMOKE), machine if at else None, tuple(map(unquote, settings)))

    def __str__(self) -> str:
        """Return the name that `parse` splits; characters that a path or a shell may not take are %-encoded."""
        machine = "" if self.machine is None else f"@{self.machine}"
        settings = "".join(f"+{quote(setting, safe='=,[]').replace('~', '%7E')}" for setting in self.settings)
        return f"{SMOKE if self.is_twin else ''}{self.recipe}{settings}{machine}"

    def vary(self, settings: Iterable[str]) -> "RunName":
        """Return the name with further settings."""
        return self._replace(settings=(*self.settings, *settings))

    @property
    def published(self) -> "RunName":
        """The name without settings of how the run is executed, under which its results are published."""
        return self._replace(settings=tuple(setting for setting in self.settings if not is_execution(setting)))


def is_execution(setting: str) -> bool:
    """Return True for a setting of how a run is executed.

    >>> [is_execution(setting) for setting in ("run.threads=1", "seed=2")]
    [True, False]
    """
    return re.split("[.=]", setting, maxsplit=1)[0] in EXECUTION


def is_recipe_name(stem: str) -> bool:
    """Return True if a recipe may have the name."""
    return NAME.fullmatch(stem) is not None and stem not in NOT_RECIPES


def describe_misnamed(path: Path, kind: str = "recipe") -> str:
    """Return an error message about a file whose name cannot be a recipe's, or a machine's."""
    others = f" and is none of {', '.join(NOT_RECIPES)}" if kind == "recipe" else ""
    return (
        f"{path.parent}/{path.name!r}: cannot be a {kind}'s name, which begins with a letter or digit, has letters, digits, "
        f"'.', '_' and '-'{others}; rename the file"
    )
