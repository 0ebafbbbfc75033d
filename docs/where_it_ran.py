"""The tables of docs/where-it-ran.md, from docs/where-it-ran.yaml."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, RootModel, model_validator

from relm.recipes.section import Section, read_yaml

PATH = Path(__file__).with_name("where-it-ran.yaml")
STATES = {"ran": "ran", "compiled": "compiled, not executed", "stand_in": "ran on a stand-in", "not_run": "**has not run**"}


class Row(Section):
    """A part of relm, and one machine, device or service on which it has run or has not."""

    what: str
    """The part."""
    where: str
    """The machine, device or service."""
    device: Literal["cpu", "cuda", "tpu", "ipu"] | None = None
    """The device that it is written for."""
    state: Literal["ran", "compiled", "stand_in", "not_run"]
    """The comment of docs/where-it-ran.yaml explains each."""
    commands: list[str] = Field(default_factory=list)
    """Commands that run it."""
    tests: list[str] = Field(default_factory=list)
    """Files that check it."""
    marker: str | None = None
    """The pytest marker that all of these have."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    """The date of `commit`."""
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")] | None = None
    """The commit that recorded the run."""
    note: str | None = None
    """Sentences on what it shows."""

    @model_validator(mode="after")
    def a_run_has_a_date_and_a_commit(self) -> Self:
        if len({self.state != "not_run", self.date is not None, self.commit is not None}) > 1:
            raise ValueError(f"{self.what}: date and commit belong to a part that has run, and to no other")
        return self


class Rows(RootModel[dict[str, list[Row]]]):
    """All rows, by the heading of their table."""


def read_rows() -> dict[str, list[Row]]:
    """Return the rows of docs/where-it-ran.yaml by heading."""
    return Rows.model_validate(read_yaml(PATH)).root


def format_rows(groups: dict[str, list[Row]]) -> str:
    """Return the tables of the page, one a heading."""
    lines = []
    for heading, rows in groups.items():
        lines += [f"## {heading}", "", "| part | where | state | commands and tests |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(format_cells(row))} |" for row in rows] + [""]
    return "\n".join(lines).rstrip()


def format_cells(row: Row) -> list[str]:
    """Return the cells of a row of the page."""
    date = row.date and row.date.replace("-", "&#8209;")  # a hyphen that does not break the line
    state = "<br>".join(filter(None, [STATES[row.state], date, row.commit]))
    where = "<br>".join(filter(None, [row.where, row.note]))
    tests = [f"[{Path(test).name}](../{test.partition('::')[0]})" for test in row.tests]
    shown = "<br>".join([*(f"`{command}`" for command in row.commands), *tests])
    return [re.sub(r"\s+", " ", cell).strip() for cell in (row.what, where, state, shown)]
