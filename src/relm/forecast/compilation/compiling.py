"""Recipes through the TPU's compiler: trace, compile each different program once, and keep what was found.

What a compiler says of a program is kept in `work/compiled/KEY.json`; the key holds all that has a say in it.
"""

import functools
import hashlib
import json
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pydantic import ValidationError

from relm.artifact import canonical_json, read_json, write_json
from relm.devices.tpu_options import OPTIONS, VARIABLE
from relm.errors import RelmError
from relm.forecast.compilation.compile_record import (
    REVISION,
    Compilation,
    Compiled,
    CompiledProgram,
    Program,
    ProgramMemory,
    in_words,
)
from relm.forecast.compilation.program_facts import collective_operations, collectives, findings, refusal_of
from relm.forecast.compilation.tpu_compiler import PACKAGES
from relm.forecast.compilation.tpu_environment import python, run_module, tail_of
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan
from relm.recipes.topologies import TOPOLOGIES
from relm.training.micro_batches import micro_batch_size

# Written by relm.forecast.compilation.tracing.
INDEX, REFUSED = "programs.json", "refused.txt"
# What the program of held-out examples is called.
HELD_OUT = "held_out"


class Wish(NamedTuple):
    """A phase of a recipe, for a slice."""

    recipe: str
    phase: str
    topology: str


class TracedProgram(NamedTuple):
    """A program of a wish, and where its HLO lies."""

    wish: Wish
    name: str
    program: Program
    hlo: Path
    vocabulary: str


def topology_of(plan: Plan, stated: str | None) -> str:
    """The slice that a recipe is compiled for.

    Raises:
        RelmError: nobody says which, or it is none.
    """
    topology = stated or plan.recipe.run.topology
    if topology is None:
        raise RelmError(f"recipe {plan.name} has no run.topology; say for which slice, such as --topology v3-8")
    if topology not in TOPOLOGIES:
        raise RelmError(f"--topology {topology}: expected one of {', '.join(TOPOLOGIES)}")
    return topology


def wishes_of(plan: Plan, phase: str | None, stated: str | None) -> list[Wish]:
    """One of each phase, or of one.

    Raises:
        RelmError: there is no such phase, or no slice.
    """
    if phase is not None and phase not in plan.phases:
        raise RelmError(f"recipe {plan.name} has no phase {phase!r}; it has {', '.join(plan.phases)}")
    return [Wish(plan.name, name, topology_of(plan, stated)) for name in ([phase] if phase else plan.phases)]


def traced(wishes: Sequence[Wish], folder: Path) -> list[TracedProgram]:
    """The programs of all wishes, made in one process for each number of devices.

    Args:
        folder: where the programs go.

    Raises:
        RelmError: a recipe cannot be traced, or PyTorch/XLA fails.
    """
    groups: dict[int, list[Wish]] = {}
    for wish in wishes:
        groups.setdefault(TOPOLOGIES[wish.topology].devices, []).append(wish)
    return [program for devices, group in sorted(groups.items()) for program in _traced(group, devices, folder / str(devices))]


def _traced(wishes: Sequence[Wish], devices: int, folder: Path) -> list[TracedProgram]:
    folder.mkdir(parents=True)
    write_json(folder / "wishes.json", [wish._asdict() for wish in wishes])
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "TF_CPP_MIN_LOG_LEVEL": "2"}
    what = wishes[0].recipe if len(wishes) == 1 else f"{len(wishes)} phases of recipes"
    arguments = [folder / "wishes.json", folder]
    doing = f"tracing {what} for {devices} devices"
    if run_module("relm.forecast.compilation.tracing", arguments, variables, folder / "log", doing):
        refused = folder / REFUSED
        raise RelmError(
            refused.read_text(encoding="utf-8") if refused.exists() else f"{doing} failed:\n{tail_of(folder / 'log')}"
        )
    return [
        TracedProgram(
            Wish(entry["recipe"], entry["phase"], entry["topology"]),
            entry["name"],
            Program.model_validate(entry["program"]),
            folder / entry["file"],
            entry["vocabulary"],
        )
        for entry in read_json(folder / INDEX)
    ]


def installed() -> dict[str, str]:
    """The versions of the TPU's compiler in its environment."""
    return dict(_installed(python()))


@functools.cache
def _installed(interpreter: Path) -> dict[str, str]:
    ask = "import importlib.metadata, json, sys; print(json.dumps({n: importlib.metadata.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(interpreter), "-c", ask, *PACKAGES], capture_output=True, text=True)
    if done.returncode:
        raise RelmError(f"{interpreter} has not all of {', '.join(PACKAGES)}; make it anew with `make .venv-tpu/made-from`")
    return dict(json.loads(done.stdout))


def compiled_key(program: Program, layout: str, versions: Mapping[str, str]) -> str:
    """What a compiled program follows from."""
    parts = {"program": program.sha256, "layout": layout, "versions": dict(versions), "options": OPTIONS, "revision": REVISION}
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def compiled(asked: TracedProgram, stop: threading.Event | None = None) -> Compiled:
    """What the compiler makes of a program, or made of it before.

    Args:
        stop: as in `run_module`.

    Raises:
        RelmError: the compiler fails, other than for want of a device's memory.
    """
    layout = TOPOLOGIES[asked.wish.topology].layout
    key = compiled_key(asked.program, layout, installed())
    kept = work_folder() / "compiled" / f"{key}.json"
    if not kept.exists():
        write_json(kept, _compiled(asked, layout, key, stop).model_dump(mode="json"))
    try:
        return Compiled.model_validate(read_json(kept))
    except ValidationError as error:
        raise RelmError(f"{kept}: {in_words(error)}; delete it, and it is compiled again") from None


def _compiled(asked: TracedProgram, layout: str, key: str, stop: threading.Event | None) -> Compiled:
    folder = asked.hlo.parent / f"compiled-{key}"
    folder.mkdir()
    paths = {name: str(folder / name) for name in ("answer", "text", "source_text")}
    write_json(folder / "job", {"hlo": str(asked.hlo), "donated": asked.program.donated, "layout": layout, **paths})
    doing = f"compiling {asked.wish.recipe}, {asked.wish.phase}, {asked.name}, for {asked.wish.topology}"
    # What is kept for a key is compiled with `OPTIONS`, whatever options a person has for training.
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2", VARIABLE: ""}
    if run_module("relm.forecast.compilation.tpu_compiler", [folder / "job"], variables, folder / "log", doing, stop):
        raise RelmError(f"{doing} failed, other than for want of memory:\n{tail_of(folder / 'log')}")
    answer = read_json(folder / "answer")
    if answer["devices"] != asked.program.devices:
        raise RelmError(f"{layout}: the compiler has {answer['devices']} devices, the program {asked.program.devices}")
    text = (folder / "text").read_text(encoding="utf-8") if "refusal" not in answer else ""
    return judged(answer, text, (folder / "source_text").read_text(encoding="utf-8"), key, layout)


def judged(answer: Mapping[str, Any], text: str, source: str, key: str, layout: str) -> Compiled:
    """The compiler's answer in the words of `result`.

    Args:
        answer: of `tpu_compiler.work`.
        text: the optimised program, empty if refused.
        source: the program before.
    """
    facts = {
        "key": key,
        "layout": layout,
        "versions": answer["versions"],
        "options": OPTIONS,
        "seconds": round(answer["seconds"], 1),
    }
    found = findings(source, text)
    if "refusal" in answer:
        return Compiled(**facts, fits=False, refusal=refusal_of(answer["refusal"]), findings=found)
    return Compiled(
        **facts,
        fits=True,
        memory=ProgramMemory(capacity=answer["capacity"], **answer["memory"]),
        flops=answer["flops"],
        bytes_accessed=answer["bytes_accessed"],
        transcendentals=answer["transcendentals"],
        collectives=tuple(collectives(text)),
        operations=collective_operations(text),
        findings=found,
    )


def compile_recipe(plan: Plan, phase: str | None, stated: str | None) -> Compilation:
    """All programs of a recipe through the compiler.

    Args:
        phase: one of its phases; None: all.
        stated: the slice; None: the recipe's.

    Raises:
        RelmError: the recipe cannot be traced, or the compiler fails.
    """
    topology = topology_of(plan, stated)
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        programs = traced(wishes_of(plan, phase, stated), Path(folder))
        return compilation_of(plan, topology, [(each, compiled(each)) for each in programs])


def recipe_facts(plan: Plan, phases: Iterable[str]) -> dict[str, Any]:
    """Return the keys of a recipe's phases on which compiled programs depend, as `Compilation` names them."""
    run, named = plan.recipe.run, {name: plan.recipe.pretrain[name] for name in phases}
    return {
        "sequences": {name: phase.global_batch_size for name, phase in named.items()},
        "micro_batches": {name: micro_batch_size(phase, run.micro_batch_size, 1) for name, phase in named.items()},
        "activation_checkpointing": run.activation_checkpointing,
    }


def slice_facts(topology: str) -> dict[str, Any]:
    """Return what `Compilation` holds of a slice of TPUs."""
    where = TOPOLOGIES[topology]
    return {"topology": topology, "layout": where.layout, "devices": where.devices, "chips": where.chips}


def compilation_of(plan: Plan, topology: str, programs: Iterable[tuple[TracedProgram, Compiled]]) -> Compilation:
    """Return a recipe's programs and what became of them."""
    found = list(programs)
    named = {asked.wish.phase for asked, _ in found}
    return Compilation(
        recipe=plan.name,
        **slice_facts(topology),
        **recipe_facts(plan, [name for name in plan.phases if name in named]),
        vocabulary=found[0][0].vocabulary,
        programs=tuple(
            CompiledProgram(phase=asked.wish.phase, name=asked.name, program=asked.program, compiled=result)
            for asked, result in found
        ),
    )
