"""The facts on compiled programs, as `compile.json` of a run and the committed table docs/compiled.json hold them.

One `Compilation` is one recipe for one slice of TPUs; its programs are those that training runs. All sizes are bytes of one
device (a core of v2 and v3, a chip of later ones), all counts are of one device and one step:

    {"recipe": "roberta_base_v3-8", "topology": "v3-8", "layout": "v3:2x2", "devices": 8,
     "programs": [{"phase": "main", "name": "step",
                   "compiled": {"program": SHA256, "memory": {"capacity": ..., "peak": ..., ...}, "flops": ..., ...}}, ...]}

The table names the programs of each run's phases by key, and has the compiler's figures of each program once.
`make compile-all` writes it.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import relm
from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.plan import Plan
from relm.recipes.run_name import RunName

REVISION = 2
"""The revision of the figures in `compile.json`; increase it when a figure is computed differently."""
TABLE = Path(relm.__file__).parents[2] / "docs" / "compiled.json"


class Facts(BaseModel):
    """A frozen record without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Program(Facts):
    """A program as it was traced, before any compiler saw it."""

    sha256: str
    """The hash of its HLO and its donated arguments: the same on every machine and in every process."""
    devices: int
    arguments: int
    """The count of its argument arrays."""
    donated: tuple[int, ...]
    """Indices of the arguments that it may overwrite: parameters, optimizer state, and all else that it updates."""
    parameters: tuple[int, ...]
    """The different element counts of the model's parameters: the sizes of the gradients' all-reduces."""


class ProgramMemory(Facts):
    """A program's memory by use, in bytes of one device."""

    capacity: int
    """The memory that the compiler can allocate, as it reports it, to two decimals of a GiB."""
    peak: int
    """Peak memory, arguments and results included."""
    arguments: int
    results: int
    shared: int
    """The part of the results that reuses the memory of donated arguments."""
    temporaries: int
    code: int


class ProgramFindings(Facts):
    """Lines that a program's HLO should not have, at most a few of each kind."""

    float64: tuple[str, ...] = ()
    """Arrays of float64 with more than one element."""
    host_transfers: tuple[str, ...] = ()
    dynamic_shapes: tuple[str, ...] = ()


class Allocation(Facts):
    """One of the largest arrays of a program that does not fit."""

    bytes: int
    shape: str
    operation: str


class Refusal(Facts):
    """The compiler's message on a program that does not fit."""

    used: str
    """The memory that the program needs, such as 17.49G, in the compiler's own GiB; empty where it reports none."""
    capacity: str
    words: str
    """The first line of the message."""
    largest: tuple[Allocation, ...]

    @property
    def figures(self) -> str:
        """The memory needed and available, or the compiler's message: memory other than HBM may be short."""
        return f"{self.used}iB of {self.capacity}iB" if self.used else self.words


class Compiled(Facts):
    """The result of compiling a program for one slice."""

    program: str
    """The program's sha256."""
    layout: str
    versions: dict[str, str]
    """The versions of jax, jaxlib and libtpu."""
    refusal: Refusal | None = None
    memory: ProgramMemory | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    """Bytes read and written in the memory of one device, as the compiler counts them."""
    operations: dict[str, int] = Field(default_factory=dict)
    """The count of the optimised program's collective operations, by kind."""
    elements: int = 0
    """The elements of all arrays that these carry."""
    beyond_gradients: dict[str, int] = Field(default_factory=dict)
    """The elements of the largest array that cannot be a sum of a gradient, by kind of operation."""
    findings: ProgramFindings = ProgramFindings()
    seconds: float
    """The duration of compiling, on any machine."""

    @property
    def fits(self) -> bool:
        """True if the compiler accepted the program."""
        return self.refusal is None


class CompiledProgram(Facts):
    """A program of a recipe with the result of compiling it."""

    phase: str
    name: str
    """step; with accumulation first, between and last micro_batch; held_out."""
    compiled: Compiled


class TracedRun(Facts):
    """A run as it was when its programs were traced."""

    sequences: dict[str, int]
    """Maps a phase to the sequences of its global batch."""
    micro_batches: dict[str, int]
    """Maps a phase to the sequences of a micro-batch, over all devices."""
    activation_checkpointing: bool
    vocabulary: str
    """The count of tokens, and the source of it."""


class Compilation(TracedRun):
    """A recipe for a slice of TPUs."""

    revision: int = REVISION
    recipe: str
    """Name of the run: the recipe's on the machine it names, otherwise NAME@MACHINE."""
    topology: str
    layout: str
    devices: int
    chips: int | float
    programs: tuple[CompiledProgram, ...]

    @property
    def fits(self) -> bool:
        """True if all programs fit."""
        return all(each.compiled.fits for each in self.programs)


def write_compilation(path: Path, compilation: Compilation) -> None:
    """Write `compile.json`, whole or not at all."""
    write_json(path, compilation.model_dump(mode="json"))


def read_compilation(path: Path) -> Compilation:
    """Read `compile.json`; raise if it is missing or another version wrote it."""
    try:
        return Compilation.model_validate(read_json(path))
    except ValidationError as error:
        raise RelmError(f"{path}: {format_mismatch(error)}; make it again with `relm compile`") from None


def format_mismatch(error: ValidationError) -> str:
    """Return a phrase for the first key of a file that does not match its model."""
    first = error.errors()[0]
    return f"not what this version of relm writes ({'.'.join(map(str, first['loc']))}: {first['msg']})"


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
    """Return the content of the committed file; empty if it does not exist."""
    return _read(path, path.stat().st_mtime_ns) if path.exists() else Shipped()


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> Shipped:
    """Return the content of a file; `relm list` reads it for each run and machine, so it is cached until the file changes."""
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
            f"recipe {plan.name} has fingerprint {plan.fingerprint}, but docs/compiled.json has figures of {facts.fingerprint}"
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
    """Return a run's compiled programs from `relm compile` in its folder, else from the table; None: neither has them."""
    if not plan.compilation.is_file():
        return shipped_compilation(read_shipped(), plan)
    found = read_compilation(plan.compilation)
    if found.recipe != plan.run_name:
        raise RelmError(f"it belongs to recipe {found.recipe}, not to {plan.name}")
    return found
