"""The section `expect` of a recipe: published figures to compare the results with."""

from typing import Self

from pydantic import Field, model_validator

from relm.recipes.section import Section, Slug


class Noise(Section):
    """Seed-to-seed noise of a figure."""

    standard_deviation: float = Field(gt=0)
    """Standard deviation of single runs."""
    runs: int = Field(ge=2)
    """Number of runs it was computed from."""
    source: str
    """Source of the value: the project's own runs, or a study."""


class Expectation(Section):
    """One published figure, and the tolerance of its comparison."""

    metric: str = Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$")
    """Name of the metric: TASK.FIGURE, as in eval/TASK.json."""
    value: float
    """Published value."""
    tolerance: float = Field(gt=0)
    """Largest difference that counts as equal."""
    basis: str
    """Reason for this tolerance."""
    place: str
    """Table, figure or page of the publication with the value."""
    noise: Noise | None = None
    """Seed-to-seed noise of other runs than the recipe's own seeds, with whose spread it is pooled; without either the report
    shows the difference and no verdict."""
    published_runs: int = Field(default=1, gt=0)
    """Number of runs that the published value is the mean of."""
    comparable: bool = True
    """The published protocol is the same as relm's; if false, the report marks the figure as not comparable."""
    measured_on: Slug | None = None
    """Machine on which a time or a speed was measured, as in `recipes/machines/`; on another one it is not compared."""
    reference_runs: Slug | None = Field(default=None, exclude_if=lambda name: name is None)
    """Runs of the original's own program, to compare ours with as well: the name of a file in
    `recipes/reference_runs/`. Their spread takes the place of `noise`."""

    @model_validator(mode="after")
    def noise_has_one_source(self) -> Self:
        if self.noise is not None and self.reference_runs is not None:
            raise ValueError("noise and reference_runs both give the spread of other runs; leave one out")
        return self
