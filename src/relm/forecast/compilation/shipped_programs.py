"""The compiled programs of all recipes for TPUs, in a file that is committed: `make compile-all`, `make compile-check`.

The file names the programs of each run's phases by key, and holds the compiler's figures of each program. Its runs are
all recipes for TPUs on all machines with TPUs, named NAME@MACHINE. The check traces every run and compiles nothing; only
`make compile-all` compiles a changed program again.
"""

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.forecast.compilation.compiling import (
    HELD_OUT,
    ProgramRequest,
    TracedProgram,
    compile_program,
    compiled_key,
    installed_versions,
    recipe_facts,
    requests_of,
    trace_programs,
)
from relm.forecast.compilation.tpu_environment import CHECKOUT
from relm.limits import available_memory, usable_cores
from relm.recipes.machine.machines import divides
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.training.machine.compile_record import TABLE, Compilation, RunFacts, Shipped, read_shipped, shipped_compilation

# Most memory that one compiler takes, in bytes: for a step of BERT large in bfloat16 on v5e.
MEMORY = 14 * 2**30


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
    return [request for run in runs for request in requests_of(project.plan(run))]


def runs_of(project: Project, programs: Sequence[TracedProgram]) -> dict[str, RunFacts]:
    """Return the table's facts on the runs of traced programs, by name."""
    found: dict[str, RunFacts] = {}
    for each in sorted(programs, key=lambda each: each.request.run):
        plan = project.plan(each.request.run)
        facts = {"fingerprint": plan.fingerprint, "vocabulary": each.vocabulary, **recipe_facts(plan)}
        run = found.setdefault(plan.name, RunFacts(**facts, programs={}))
        run.programs.setdefault(each.request.phase, {})[each.name] = key_of(each)
    return found


def key_of(program: TracedProgram) -> str:
    """Return the key of a traced program for its slice, with the compiler that is installed."""
    return compiled_key(program.program.sha256, TOPOLOGIES[program.request.topology].layout, installed_versions())


def current_compilation(shipped: Shipped, plan: Plan, chosen: Mapping[str, int | None]) -> Compilation | None:
    """Return the table's programs of a run; None if `compile_run` would compile others."""
    try:
        found = shipped_compilation(shipped, plan)
    except RelmError:
        return None
    same = found is not None and all(getattr(found, key) == value for key, value in recipe_facts(plan, chosen).items())
    return found if same else None


def check(shipped: Shipped, runs: Mapping[str, RunFacts]) -> None:
    """Compare the table with the runs' current programs, whose keys cover the compiler's versions and options."""
    missing = {row.run for row in shipped.rows if row.key not in shipped.programs}
    if stale := sorted(missing | {name for name in {**shipped.runs, **runs} if shipped.runs.get(name) != runs.get(name)}):
        raise RelmError(
            f"docs/compiled.json is outdated: {', '.join(stale)}; a recipe, its programs, or the compiler's versions or "
            "options changed. Run `make compile-all`, which compiles changed programs, and commit docs/compiled.json"
        )
    if rejected := sorted({row.run for row in shipped.rows if not shipped.programs[row.key].fits}):
        raise RelmError(f"docs/compiled.json: {', '.join(rejected)} does not fit; see `relm compile NAME`")


def compile_missing(
    shipped: Shipped, programs: Sequence[TracedProgram], runs: Mapping[str, RunFacts], path: Path = TABLE
) -> Shipped:
    """Compile the missing programs, and write the table after each one, so that an interruption loses at most those running."""
    # The steps of originals first.
    last = sorted(programs, key=lambda each: (each.request.topology == "v3-8", each.name != HELD_OUT, each.request))
    traced = {key_of(each): each for each in reversed(last)}
    made = {key: shipped.programs[key] for key in traced if key in shipped.programs}
    todo = [key for key in traced if key not in made]
    write_shipped(path, Shipped(runs=dict(runs), programs=made))
    stop = threading.Event()
    with ThreadPoolExecutor(concurrent_compilations()) as pool:
        try:
            running = {pool.submit(compile_program, traced[key], stop): key for key in todo}
            for number, done in enumerate(as_completed(running), start=1):
                made[running[done]] = done.result()
                write_shipped(path, Shipped(runs=dict(runs), programs=made))
                print(f"{number} of {len(todo)} compiled", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return Shipped(runs=dict(runs), programs=made)


def write_shipped(path: Path, shipped: Shipped) -> None:
    """Write the table, one run or program a line, sorted."""
    texts = []
    for part, rows in shipped.model_dump(mode="json", exclude_defaults=True).items():
        lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
        joined = ",\n".join(lines)
        texts.append(f"{json.dumps(part)}: {{\n{joined}\n}}")
    with atomic_file(path, "w") as file:
        file.write(f"{{{', '.join(texts)}}}\n")


def concurrent_compilations() -> int:
    """Return how many programs to compile at once: a compiler keeps one core busy, and may take `MEMORY`."""
    return max(1, min(usable_cores(), available_memory() // MEMORY))


def main(arguments: Sequence[str]) -> int:
    """Compile the missing programs, or with --check report them; return 1 if the table is outdated or a run does not fit."""
    try:
        with TemporaryDirectory(prefix="relm-compile-") as folder:
            project = Project(CHECKOUT)
            programs = trace_programs(shipped_requests(project), Path(folder))
            shipped, runs = read_shipped(), runs_of(project, programs)
            if "--check" not in arguments:
                shipped = compile_missing(shipped, programs, runs)
            check(shipped, runs)
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
