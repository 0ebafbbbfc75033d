"""The compiled programs of all recipes for TPUs, in a file that is committed: `make compile-all`, `make compile-check`.

The file names the programs of each run's phases, by sha256, and holds the compiler's figures of each program. Its runs are
all recipes for TPUs on all machines with TPUs, named NAME@MACHINE. The check traces every run and compiles nothing; only
`make compile-all` compiles a changed program again.
"""

import functools
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field, ValidationError

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.forecast.compilation.compile_record import Compilation, Compiled, CompiledProgram, Facts, Program, format_mismatch
from relm.forecast.compilation.compiling import (
    HELD_OUT,
    ProgramRequest,
    TracedProgram,
    compile_program,
    compiled_key,
    installed_versions,
    recipe_facts,
    requests_of,
    slice_facts,
    topology_of,
    trace_programs,
)
from relm.forecast.compilation.tpu_environment import CHECKOUT
from relm.limits import available_memory, usable_cores
from relm.recipes.machine_use import divides
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.run_name import RunName
from relm.recipes.topologies import TOPOLOGIES

TABLE = CHECKOUT / "docs" / "compiled.json"
# Most memory that one compiler takes, in bytes: for a step of BERT large in bfloat16 on v5e.
MEMORY = 14 * 2**30


class Row(Facts):
    """A program of a run."""

    run: str
    """Name of the run, NAME@MACHINE."""
    phase: str
    name: str
    topology: str
    program: str
    """The program's sha256."""
    layout: str


class RunFacts(Facts):
    """A run as it was when its programs were traced."""

    fingerprint: str
    sequences: dict[str, int]
    """Maps a phase to the sequences of its global batch."""
    micro_batches: dict[str, int]
    """Maps a phase to the sequences of a micro-batch, over all devices."""
    activation_checkpointing: bool
    vocabulary: str
    """The count of tokens, and the source of it."""


class Shipped(Facts):
    """The content of the committed file."""

    rows: tuple[Row, ...] = ()
    runs: dict[str, RunFacts] = Field(default_factory=dict)
    """The runs by name, NAME@MACHINE."""
    programs: dict[str, Program] = Field(default_factory=dict)
    """The programs by sha256."""
    compiled: dict[str, dict[str, Compiled]] = Field(default_factory=dict)
    """The results of compiling, by sha256 and layout."""

    def compiled_for(self, row: Row) -> Compiled | None:
        """Return the result of compiling a row's program; None: it is not compiled yet."""
        return self.compiled.get(row.program, {}).get(row.layout)


def read_shipped(path: Path = TABLE) -> Shipped:
    """Return the content of the committed file, empty where there is none.

    Raises:
        RelmError: another version wrote it.
    """
    return _read(path, path.stat().st_mtime_ns) if path.exists() else Shipped()


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> Shipped:
    """Return the content of a file that was changed at a time; `relm list` asks for it once a run and machine."""
    try:
        return Shipped.model_validate(read_json(path))
    except ValidationError as error:
        raise RelmError(f"{path}: {format_mismatch(error)}; run `make compile-all`") from None


def shipped_requests(project: Project) -> list[ProgramRequest]:
    """Return a request for every phase of every recipe for a TPU, on every machine with TPUs that divides its batches."""
    recipes = [name for name in project.names() if project.plan(name).recipe.run.topology]
    runs = [
        f"{name}@{machine}"
        for name in recipes
        for machine, hardware in project.machines().items()
        if hardware.topology is not None
        and all(divides(hardware, phase) for phase in project.plan(name).recipe.pretrain.values())
    ]
    return [request for run in runs for request in requests_of(project.plan(run), None)]


def rows_of(programs: Sequence[TracedProgram]) -> list[Row]:
    """Return the table's rows for traced programs."""
    return [
        Row(
            run=each.request.run,
            phase=each.request.phase,
            name=each.name,
            topology=each.request.topology,
            program=each.program.sha256,
            layout=TOPOLOGIES[each.request.topology].layout,
        )
        for each in programs
    ]


def runs_of(project: Project, programs: Sequence[TracedProgram]) -> dict[str, RunFacts]:
    """Return the table's facts on the runs of traced programs, by name."""
    vocabularies = {each.request.run: each.vocabulary for each in programs}
    return {name: _run_facts(project.plan(name), vocabulary) for name, vocabulary in sorted(vocabularies.items())}


def _run_facts(plan: Plan, vocabulary: str) -> RunFacts:
    return RunFacts(fingerprint=plan.fingerprint, vocabulary=vocabulary, **recipe_facts(plan, plan.phases))


def shipped_compilation(shipped: Shipped, plan: Plan) -> Compilation | None:
    """Return the table's programs of a run; None if the table lacks the run.

    Raises:
        RelmError: the recipe has another fingerprint now, or a program was not compiled.
    """
    name = str(RunName.parse(plan.name)._replace(machine=plan.recipe.run.machine))
    facts, rows = shipped.runs.get(name), [row for row in shipped.rows if row.run == name]
    if facts is None or not rows:
        return None
    if facts.fingerprint != plan.fingerprint:
        raise RelmError(
            f"recipe {plan.name} has fingerprint {plan.fingerprint}, docs/compiled.json has figures of {facts.fingerprint}"
        )
    return Compilation(
        recipe=plan.run_name,
        **slice_facts(topology_of(plan)),
        **facts.model_dump(exclude={"fingerprint"}),
        programs=tuple(_compiled_program(shipped, row) for row in rows),
    )


def current_compilation(
    shipped: Shipped, plan: Plan, phase: str | None, chosen: Mapping[str, int | None]
) -> Compilation | None:
    """Return the table's programs of a run, or of one phase; None where `compile_run` would compile others.

    Args:
        chosen: maps phases to the micro-batches that were chosen for another machine.
    """
    try:
        found = shipped_compilation(shipped, plan)
    except RelmError:
        return None
    facts = recipe_facts(plan, plan.phases, chosen)
    if found is None or any(getattr(found, key) != value for key, value in facts.items()):
        return None
    programs = tuple(each for each in found.programs if phase in (None, each.phase))
    return found.model_copy(update={"programs": programs}) if programs else None


def _compiled_program(shipped: Shipped, row: Row) -> CompiledProgram:
    compiled = shipped.compiled_for(row)
    if compiled is None:
        raise RelmError(f"docs/compiled.json: {row.run} (phase {row.phase}, {row.name}) is not compiled")
    return CompiledProgram(phase=row.phase, name=row.name, program=shipped.programs[row.program], compiled=compiled)


def missing(shipped: Shipped, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose program is not in the table, each program and slice once, the steps of originals first."""
    found = {(row.program, row.layout): row for row in reversed(rows) if shipped.compiled_for(row) is None}
    return sorted(found.values(), key=lambda row: (row.topology != "v3-8", row.name == HELD_OUT, row.topology, row.run))


def check(shipped: Shipped, rows: Sequence[Row], runs: Mapping[str, RunFacts]) -> None:
    """Compare the table with the runs' programs of today.

    Raises:
        RelmError: a program is missing, changed, compiled with other options or versions, or does not fit.
    """
    before = {(row.run, row.phase, row.name): row for row in shipped.rows}
    changed = [row for row in rows if before.get((row.run, row.phase, row.name)) != row or shipped.compiled_for(row) is None]
    if changed or len(rows) != len(shipped.rows):
        names = ", ".join(dict.fromkeys(f"{row.run} ({row.phase}, {row.name})" for row in changed)) or "a run is gone"
        raise RelmError(
            f"docs/compiled.json is not current: {names}; these runs train with other programs than those compiled. "
            "Run `make compile-all`, which compiles what changed, and commit docs/compiled.json"
        )
    edited = sorted(name for name in {**shipped.runs, **runs} if shipped.runs.get(name) != runs.get(name))
    if edited:
        raise RelmError(
            f"docs/compiled.json is not current: {', '.join(edited)} was edited, although its programs stayed the same. "
            "Run `make compile-all`, which compiles nothing then, and commit docs/compiled.json"
        )
    older = sorted(
        {str(found.versions) for row in rows if (found := shipped.compiled_for(row)) is not None} - {str(installed_versions())}
    )
    if older:
        raise RelmError(
            f"docs/compiled.json was made by {', '.join(older)}, the TPU's environment has {installed_versions()}; delete the "
            "file, run `make compile-all` and commit it"
        )
    otherwise = [
        row.run for row in rows if (found := shipped.compiled_for(row)) is not None and found.key != _key(shipped, row)
    ]
    if otherwise:
        raise RelmError(
            f"docs/compiled.json: {', '.join(dict.fromkeys(otherwise))} was compiled with other options, or recorded by "
            "another revision; delete the file, run `make compile-all` and commit it"
        )
    refused = [row.run for row in rows if (found := shipped.compiled_for(row)) is not None and not found.fits]
    if refused:
        raise RelmError(f"docs/compiled.json: {', '.join(dict.fromkeys(refused))} does not fit; see `relm compile NAME`")


def _key(shipped: Shipped, row: Row) -> str:
    return compiled_key(shipped.programs[row.program], row.layout, installed_versions())


def compile_missing(
    shipped: Shipped, programs: Sequence[TracedProgram], runs: Mapping[str, RunFacts], path: Path = TABLE
) -> Shipped:
    """Compile the missing programs, and write the table after each one, so that an interruption loses at most those running."""
    rows = rows_of(programs)
    traced = {(row.program, row.layout): each for row, each in zip(rows, programs, strict=True)}
    made: dict[str, dict[str, Compiled]] = {}
    for row in rows:
        if (known := shipped.compiled_for(row)) is not None:
            made.setdefault(row.program, {})[row.layout] = known
    programs_by_sha = {each.program.sha256: each.program for each in programs}
    todo = missing(shipped, rows)
    facts = {"rows": tuple(rows), "runs": dict(runs), "programs": programs_by_sha}
    shipped = _written(path, Shipped(**facts, compiled=made))
    stop = threading.Event()
    with ThreadPoolExecutor(concurrent_compilations()) as pool:
        try:
            running = {pool.submit(compile_program, traced[row.program, row.layout], stop): row for row in todo}
            for number, done in enumerate(as_completed(running), start=1):
                row = running[done]
                made.setdefault(row.program, {})[row.layout] = done.result()
                shipped = _written(path, Shipped(**facts, compiled=made))
                print(f"{number} of {len(todo)} compiled", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return shipped


def concurrent_compilations() -> int:
    """Return how many programs are compiled at once: a compiler keeps one core busy, and may take `MEMORY`."""
    return max(1, min(usable_cores(), available_memory() // MEMORY))


def _written(path: Path, shipped: Shipped) -> Shipped:
    write_json(path, shipped.model_dump(mode="json"))
    return shipped


def main(arguments: Sequence[str]) -> int:
    """Compile the missing programs, or with --check report them; return 1 if the table is outdated or a run does not fit."""
    try:
        with TemporaryDirectory(prefix="relm-compile-") as folder:
            project = Project(CHECKOUT)
            programs = trace_programs(shipped_requests(project), Path(folder))
            shipped, runs = read_shipped(), runs_of(project, programs)
            if "--check" not in arguments:
                shipped = compile_missing(shipped, programs, runs)
            check(shipped, rows_of(programs), runs)
    except RelmError as error:
        print(f"relm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("relm: interrupted; the programs compiled so far are kept", file=sys.stderr)
        return 130
    print(f"{TABLE.relative_to(CHECKOUT)}: {len(shipped.rows)} programs of runs, {len(shipped.programs)} different ones")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
