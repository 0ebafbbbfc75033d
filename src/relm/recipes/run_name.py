"""Names of runs, as in `results/NAME`: a recipe, possibly its smoke twin, possibly on a named machine."""

from typing import NamedTuple

from relm.recipes.section import NAME

SMOKE = "smoke/"
RUN_NAME = rf"({SMOKE})?{NAME.pattern}(@{NAME.pattern})?"
"""Pattern of a run's name."""


class RunName(NamedTuple):
    """The parts of a run's name.

    >>> RunName.parse("smoke/tiny@h100")
    RunName(recipe='tiny', is_twin=True, machine='h100')
    >>> str(RunName("tiny", False, None))
    'tiny'
    """

    recipe: str
    """Name of a file in `recipes/`."""
    is_twin: bool
    """True for the smoke twin of the recipe."""
    machine: str | None
    """Name of a file in `recipes/machines/`; None: the machine that the recipe names."""

    @classmethod
    def parse(cls, name: str) -> "RunName":
        """Return the parts of a run's name; whether they exist is not checked."""
        plain, at, machine = name.removeprefix(SMOKE).partition("@")
        return cls(plain, name.startswith(SMOKE), machine if at else None)

    def __str__(self) -> str:
        """Return the name that `parse` splits."""
        machine = "" if self.machine is None else f"@{self.machine}"
        return f"{SMOKE if self.is_twin else ''}{self.recipe}{machine}"
