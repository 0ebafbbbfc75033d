"""The section `control` of a recipe: another recipe from which it differs in one thing."""

from typing import Annotated

from pydantic import Field

from relm.recipes.section import Section, Slug

Metric = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$")]


class Control(Section):
    """The recipe with which this one is compared, each run with that of the same seed, where both have the same paper key."""

    recipe: Slug
    """Name of the other recipe."""
    change: str
    """The one thing in which this recipe differs, as the paper's table names it."""
    metrics: list[Metric] = Field(min_length=1)
    """Metrics whose differences the paper's table shows: TASK.FIGURE, as in eval/TASK.json."""
