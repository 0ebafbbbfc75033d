"""The committed table of the compiled programs of all recipes for TPUs, docs/compiled.json.

It names the programs of each run's phases by key, and holds the compiler's figures of each program.
`make compile-all` writes it.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

import relm
from relm.artifact import read_json
from relm.errors import RelmError
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.plan import Plan
from relm.recipes.run_name import RunName
from relm.training.machine.compile_record import (
    Compilation,
    Compiled,
    CompiledProgram,
    Facts,
    TracedRun,
    format_mismatch,
    read_compilation,
)

TABLE = Path(relm.__file__).parents[2] / "docs" / "compiled.json"


class RunFacts(TracedRun):
    """A run of the table."""

    fingerprint: str
    programs: dict[str, dict[str, str]]
    """Maps a phase to its programs, each name to the key of `compiled_key`."""


class Row(NamedTuple):
    """A program of a run."""

    run: str
    phase: str
    name: str
    key: str


class Shipped(Facts):
    """The content of the committed file."""

    runs: dict[str, RunFacts] = Field(default_factory=dict)
    """The runs by name, NAME@MACHINE."""
    programs: dict[str, Compiled] = Field(default_factory=dict)
    """The compiled programs by key."""

    @property
    def rows(self) -> list[Row]:
        """Every program of every run."""
        return [
            Row(run, phase, name, key)
            for run, facts in self.runs.items()
            for phase, programs in facts.programs.items()
            for name, key in programs.items()
        ]


def read_shipped(path: Path = TABLE) -> Shipped:
    """Return the content of the committed file, empty where there is none."""
    return _read(path, path.stat().st_mtime_ns) if path.exists() else Shipped()


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> Shipped:
    """Return the content of a file that was changed at a time; `relm list` asks for it once a run and machine."""
    try:
        return Shipped.model_validate(read_json(path))
    except ValidationError as error:
        raise RelmError(f"{path}: {format_mismatch(error)}; run `make compile-all`") from None


def slice_facts(topology: str) -> dict[str, Any]:
    """Return the keys of `Compilation` that describe a slice of TPUs."""
    where = TOPOLOGIES[topology]
    return {"topology": topology, "layout": where.layout, "devices": where.devices, "chips": where.chips}


def shipped_compilation(shipped: Shipped, plan: Plan) -> Compilation | None:
    """Return the table's programs of a run; None if the table lacks the run."""
    name = str(RunName.parse(plan.name)._replace(machine=plan.recipe.run.machine))
    facts = shipped.runs.get(name)
    if facts is None or plan.recipe.run.topology is None:
        return None
    if facts.fingerprint != plan.fingerprint:
        raise RelmError(
            f"recipe {plan.name} has fingerprint {plan.fingerprint}, docs/compiled.json has figures of {facts.fingerprint}"
        )
    rows = [row for row in shipped.rows if row.run == name]
    if lacking := [row for row in rows if row.key not in shipped.programs]:
        raise RelmError(f"docs/compiled.json: {name} (phase {lacking[0].phase}, {lacking[0].name}) is not compiled")
    return Compilation(
        recipe=plan.run_name,
        **slice_facts(plan.recipe.run.topology),
        **facts.model_dump(exclude={"fingerprint", "programs"}),
        programs=tuple(CompiledProgram(phase=row.phase, name=row.name, compiled=shipped.programs[row.key]) for row in rows),
    )


def find_compilation(plan: Plan) -> Compilation | None:
    """Return a run's compiled programs: those of `relm compile` in its folder, else the table's; None: neither has them."""
    if not plan.compilation.is_file():
        return shipped_compilation(read_shipped(), plan)
    found = read_compilation(plan.compilation)
    if found.recipe != plan.run_name:
        raise RelmError(f"it belongs to recipe {found.recipe}, not to {plan.name}")
    return found
