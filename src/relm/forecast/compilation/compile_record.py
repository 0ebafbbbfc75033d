"""What is known of compiled programs, as `compile.json` holds it.

One `Compilation` is one recipe for one slice of TPUs; its programs are those that training makes of it. All sizes are bytes of
one device (a core of v2 and v3, a chip of later ones), all counts are of one device and one step:

    {"recipe": "roberta_base_v3-8", "topology": "v3-8", "layout": "v3:2x2", "devices": 8,
     "programs": [{"phase": "main", "name": "step", "program": {"sha256": ..., "arguments": ..., "donated": ...},
                   "compiled": {"fits": true, "memory": {"capacity": ..., "peak": ..., ...}, "flops": ..., ...}}, ...]}
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from relm.artifact import read_json, write_json
from relm.errors import RelmError

REVISION = 1
"""Of what `compile.json` says; goes up when a figure is computed otherwise."""


class Facts(BaseModel):
    """Figures that never change, and have no key that is not described here."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Program(Facts):
    """A program as it was traced, before any compiler saw it."""

    sha256: str
    """Of its HLO and of which arguments it may overwrite: the same on every machine and in every process."""
    devices: int
    arguments: int
    """How many arrays it is given."""
    donated: tuple[int, ...]
    """Which of them it may overwrite, counted from 0: parameters, optimizer state, and what else it gives back renewed."""
    parameters: tuple[int, ...]
    """The numbers of elements that the model's parameters have, each size once: so large are the sums over devices."""


class ProgramMemory(Facts):
    """A program's memory by use, in bytes of one device."""

    capacity: int
    """What the compiler has to deal out, by its own words, which have two decimals of a GiB."""
    peak: int
    """Most that is held at one time, arguments and results included."""
    arguments: int
    results: int
    shared: int
    """How much of the results lies where donated arguments lay."""
    temporaries: int
    code: int


class Collective(Facts):
    """What is sent between devices: all operations of one kind that carry arrays of one type and size."""

    kind: Literal["all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "collective-broadcast"]
    type: str
    elements: int
    """Of one array."""
    count: int
    """Arrays."""


class ProgramFindings(Facts):
    """Lines of a program's HLO that should not be there, at most a few of each kind."""

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
    """The compiler's word on a program that does not fit."""

    used: str
    """Such as 17.49G, in the compiler's own GiB; empty where it says none."""
    capacity: str
    words: str
    """Its first line."""
    largest: tuple[Allocation, ...]

    @property
    def figures(self) -> str:
        """How much of how much, or the compiler's words where it says neither: what is short need not be HBM."""
        return f"{self.used}iB of {self.capacity}iB" if self.used else self.words


class Compiled(Facts):
    """What the compiler made of a program for one slice."""

    key: str
    """Of `compiled_key`: program, layout, versions and options."""
    layout: str
    versions: dict[str, str]
    """Of jax, jaxlib, libtpu."""
    options: dict[str, bool]
    """Of the compiler, beside its own."""
    fits: bool
    refusal: Refusal | None = None
    memory: ProgramMemory | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    """Read and written in the memory of one device, as the compiler counts it."""
    transcendentals: float | None = None
    collectives: tuple[Collective, ...] = ()
    operations: dict[str, int] = Field(default_factory=dict)
    """Of the optimised program: how many sums over devices (all-reduce), fusions, and so on, by kind of collective."""
    findings: ProgramFindings = ProgramFindings()
    seconds: float
    """What compiling took, on whatever machine that was."""


class CompiledProgram(Facts):
    """A program of a recipe, and what became of it."""

    phase: str
    name: str
    """step; with accumulation first, between and last micro_batch; held_out."""
    program: Program
    compiled: Compiled


class Compilation(Facts):
    """A recipe for a slice of TPUs."""

    revision: int = REVISION
    recipe: str
    topology: str
    layout: str
    devices: int
    chips: int
    sequences: dict[str, int]
    """Phase -> sequences of the global batch."""
    micro_batches: dict[str, int]
    """Phase -> sequences of a micro-batch, of all devices."""
    activation_checkpointing: bool
    vocabulary: str
    """How many tokens, and how that is known."""
    programs: tuple[CompiledProgram, ...]

    @property
    def fits(self) -> bool:
        """Whether all programs do."""
        return all(each.compiled.fits for each in self.programs)


def write_compilation(path: Path, compilation: Compilation) -> None:
    """Write `compile.json`, whole or not at all."""
    write_json(path, compilation.model_dump(mode="json"))


def read_compilation(path: Path) -> Compilation:
    """Read `compile.json`.

    Raises:
        RelmError: it is absent, or was written by another version.
    """
    try:
        return Compilation.model_validate(read_json(path))
    except ValidationError as error:
        raise RelmError(f"{path}: {in_words(error)}; make it again with `relm compile`") from None


def in_words(error: ValidationError) -> str:
    """What is wrong with a file of facts."""
    first = error.errors()[0]
    return f"not what this version of relm writes ({'.'.join(map(str, first['loc']))}: {first['msg']})"
