"""Runs of an original's own program, `recipes/reference_runs/NAME.yaml`, which a verdict compares with ours."""

import math
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from relm.artifact import sha256_of
from relm.recipes.section import Section, read_yaml, validate


class ReferenceRun(Section):
    """One run of the program."""

    seed: int = Field(ge=0)
    """Random seed of the run."""
    value: float
    """Figure of the run."""


class ReferenceRuns(Section):
    """The figures of an original's own program, one for each seed."""

    program: str
    """Repository of the program, as in the recipe's `source`."""
    commit: str = Field(pattern="^[0-9a-f]{40}$")
    """Commit of the program."""
    command: str
    """Command that makes this file."""
    metric: str
    """Name of the metric, as in `expect`."""
    runs: list[ReferenceRun] = Field(min_length=2)
    """Runs, each with a different seed."""

    @model_validator(mode="after")
    def runs_differ(self) -> Self:
        seeds = [run.seed for run in self.runs]
        if twice := next((seed for seed in seeds if seeds.count(seed) > 1), None):
            raise ValueError(f"runs: seed {twice} is there twice; leave one out")
        if len(set(self.values)) == 1:
            raise ValueError(
                f"runs: all {len(seeds)} have the same figure, {self.values[0]}; seeds that differ would show a spread"
            )
        return self

    @property
    def values(self) -> list[float]:
        """The figures of the runs."""
        return [run.value for run in self.runs]

    @property
    def mean(self) -> float:
        """The mean of the figures."""
        return math.fsum(self.values) / len(self.runs)

    @property
    def place(self) -> str:
        """The program, its commit and the seeds, for a sentence."""
        return f"{self.program} at {self.commit[:8]}, seeds {', '.join(str(run.seed) for run in self.runs)}"


class LoadedRuns(NamedTuple):
    """A file of reference runs."""

    name: str
    sha256: str
    """That of the file."""
    content: ReferenceRuns


def load_reference_runs(path: Path) -> LoadedRuns:
    """Return the runs in a YAML file."""
    content = validate(ReferenceRuns, read_yaml(path), path)
    return LoadedRuns(path.stem, sha256_of(path), content)
