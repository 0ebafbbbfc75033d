"""Compilation of recipes for TPUs: trace, compile each distinct program once, and cache the result.

The result for a program is cached in `work/compiled/KEY.json`; the key covers everything that the result depends on.
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

from relm.artifact import canonical_json, read_json, read_sealed, seal, write_json
from relm.devices.tpu_options import OPTIONS
from relm.errors import RelmError
from relm.forecast.compilation.program_facts import (
    collective_operations,
    collectives,
    find_beyond_gradients,
    findings,
    parse_refusal,
)
from relm.forecast.compilation.tpu_compiler import PACKAGES
from relm.forecast.compilation.tpu_environment import find_interpreter, read_tail, run_module
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.recipes.identity import work_folder
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.plan import Plan
from relm.recipes.run_name import RunName
from relm.training.machine.compile_record import (
    REVISION,
    Compilation,
    Compiled,
    CompiledProgram,
    Program,
    ProgramMemory,
    format_mismatch,
    slice_facts,
)
from relm.training.machine.fitting_micro_batch import fill_in_micro_batch, possible_sizes
from relm.training.micro_batches import micro_batch_size

# Written by relm.forecast.compilation.tracing.
INDEX, REFUSED = "programs.json", "refused.txt"
# Name of the validation program, which runs on held-out examples.
HELD_OUT = "held_out"
NOTHING_CHOSEN: Mapping[str, int | None] = {}


class ProgramRequest(NamedTuple):
    """A phase of a run, for a slice."""

    run: str
    """Name of the run, such as `roberta_base_v3-8@v5p-8`."""
    phase: str
    topology: str
    micro_batch_size: int | None = None
    """Sequences of a micro-batch chosen for a machine; None: the recipe's."""


class TracedProgram(NamedTuple):
    """A program of a request, and the path of its HLO."""

    request: ProgramRequest
    name: str
    program: Program
    hlo: Path
    vocabulary: str


def topology_of(plan: Plan) -> str:
    """Return the slice of TPUs of a run."""
    if plan.recipe.run.pipeline is not None:
        raise RelmError(
            f"recipe {plan.name} runs on IPUs, for which PopTorch compiles: run "
            f"`relm rehearse {plan.name} --compile-only`, which docs/ipu.md describes"
        )
    if plan.recipe.run.topology is None:
        machine = plan.recipe.run.machine
        found = f"recipe {plan.name} does not name a slice" if machine is None else f"machine {machine} is not a slice"
        example = RunName.parse(plan.name)._replace(machine="v3-8")
        raise RelmError(f"{found} of TPUs; name one, such as relm compile {example}")
    return plan.recipe.run.topology


def requests_of(plan: Plan, chosen: Mapping[str, int | None] = NOTHING_CHOSEN) -> list[ProgramRequest]:
    """Return one request for each phase."""
    topology = topology_of(plan)
    return [ProgramRequest(plan.name, name, topology, chosen.get(name)) for name in plan.phases]


def trace_programs(requests: Sequence[ProgramRequest], folder: Path) -> list[TracedProgram]:
    """Trace the programs of all requests into a folder, in one process for each count of devices."""
    groups: dict[tuple[int, bool], list[ProgramRequest]] = {}
    for request in requests:
        slice_ = TOPOLOGIES[request.topology]
        groups.setdefault((slice_.devices, slice_.one_of_host), []).append(request)
    return [
        program
        for (devices, one_of_host), group in sorted(groups.items())
        for program in _trace_group(group, devices, folder / ("one" if one_of_host else str(devices)))
    ]


def _trace_group(requests: Sequence[ProgramRequest], devices: int, folder: Path) -> list[TracedProgram]:
    folder.mkdir(parents=True)
    write_json(folder / "requests.json", [request._asdict() for request in requests])
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "TF_CPP_MIN_LOG_LEVEL": "2"}
    what = requests[0].run if len(requests) == 1 else f"{len(requests)} phases of recipes"
    arguments = [folder / "requests.json", folder]
    doing = f"tracing {what} for {devices} devices"
    if run_module("relm.forecast.compilation.tracing", arguments, variables, folder / "log", doing):
        refused = folder / REFUSED
        raise RelmError(
            refused.read_text(encoding="utf-8") if refused.exists() else f"{doing} failed:\n{read_tail(folder / 'log')}"
        )
    return [
        TracedProgram(
            ProgramRequest(*(entry[key] for key in ProgramRequest._fields)),
            entry["name"],
            Program.model_validate(entry["program"]),
            folder / entry["file"],
            entry["vocabulary"],
        )
        for entry in read_json(folder / INDEX)
    ]


def installed_versions() -> dict[str, str]:
    """Return the versions of the TPU's compiler in its environment."""
    return dict(_installed(find_interpreter()))


@functools.cache
def _installed(interpreter: Path) -> dict[str, str]:
    ask = "import importlib.metadata, json, sys; print(json.dumps({n: importlib.metadata.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(interpreter), "-c", ask, *PACKAGES], capture_output=True, text=True)
    if done.returncode:
        raise RelmError(f"{interpreter} lacks some of {', '.join(PACKAGES)}; make it again with `make .venv-tpu/made-from`")
    return dict(json.loads(done.stdout))


def compiled_key(program: str, layout: str, versions: Mapping[str, str]) -> str:
    """Return the digest of everything on which the result of compiling a program, of this sha256, depends.

    It leaves out the options that torch_xla adds, because they changed nothing in RoBERTa's programs (libtpu 0.0.21): neither
    a byte of the optimised step on v6e, nor a figure on v3 (step), v4 and v5e (validation).
    """
    parts = {"program": program, "layout": layout, "versions": dict(versions), "options": OPTIONS, "revision": REVISION}
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def compile_program(traced: TracedProgram, stop: threading.Event | None = None) -> Compiled:
    """Compile a program and cache the result; return it, or the cached one."""
    layout = TOPOLOGIES[traced.request.topology].layout
    key = compiled_key(traced.program.sha256, layout, installed_versions())
    kept = work_folder() / "compiled" / f"{key}.json"
    if not kept.exists():
        write_json(kept, seal(_compile(traced, layout, key, stop).model_dump(mode="json")))
    try:
        return Compiled.model_validate(read_sealed(kept, "delete the file to compile it again"))
    except ValidationError as error:
        raise RelmError(f"{kept}: {format_mismatch(error)}; delete the file to compile it again") from None


def _compile(traced: TracedProgram, layout: str, key: str, stop: threading.Event | None) -> Compiled:
    folder = traced.hlo.parent / f"compiled-{key}"
    folder.mkdir()
    paths = {name: str(folder / name) for name in ("answer", "text", "source_text")}
    write_json(folder / "job", {"hlo": str(traced.hlo), "donated": traced.program.donated, "layout": layout, **paths})
    doing = f"compiling {traced.request.run}, {traced.request.phase}, {traced.name}, for {traced.request.topology}"
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if run_module("relm.forecast.compilation.tpu_compiler", [folder / "job"], variables, folder / "log", doing, stop):
        raise RelmError(f"{doing} failed, but not for lack of memory:\n{read_tail(folder / 'log')}")
    answer = read_json(folder / "answer")
    if answer["devices"] != traced.program.devices:
        raise RelmError(f"{layout}: the compiler has {answer['devices']} devices, the program {traced.program.devices}")
    text = (folder / "text").read_text(encoding="utf-8") if "refusal" not in answer else ""
    return compiled_from_answer(answer, text, (folder / "source_text").read_text(encoding="utf-8"), traced.program, layout)


def compiled_from_answer(answer: Mapping[str, Any], text: str, source: str, program: Program, layout: str) -> Compiled:
    """Return the answer of `tpu_compiler.compile_job` as a `Compiled`; `text` is the optimised program, or empty."""
    facts = {
        "program": program.sha256,
        "layout": layout,
        "versions": answer["versions"],
        "seconds": round(answer["seconds"], 1),
    }
    found = findings(source, text)
    if "refusal" in answer:
        return Compiled(**facts, refusal=parse_refusal(answer["refusal"]), findings=found)
    carried = collectives(text)
    return Compiled(
        **facts,
        memory=ProgramMemory(capacity=answer["capacity"], **answer["memory"]),
        flops=answer["flops"],
        bytes_accessed=answer["bytes_accessed"],
        operations=collective_operations(text),
        elements=sum(size * count for (_, size), count in carried.items()),
        beyond_gradients=find_beyond_gradients(carried, program),
        findings=found,
    )


def compile_run(plan: Plan, chosen: Mapping[str, int | None] = NOTHING_CHOSEN) -> Compilation:
    """Compile all programs of a run, with the micro-batches `chosen` for its machine, and return their figures."""
    requests = requests_of(plan, chosen)
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        programs = trace_programs(requests, Path(folder))
        return compilation_of(plan, [(each, compile_program(each)) for each in programs])


def recipe_facts(plan: Plan, chosen: Mapping[str, int | None] = NOTHING_CHOSEN) -> dict[str, Any]:
    """Return the keys of a recipe on which compiled programs depend, as `Compilation` names them."""
    run, named = plan.recipe.run, plan.recipe.pretrain
    return {
        "sequences": {name: phase.global_batch_size for name, phase in named.items()},
        "micro_batches": {
            name: micro_batch_size(phase, chosen.get(name) or run.micro_batch_size, 1) for name, phase in named.items()
        },
        "activation_checkpointing": run.activation_checkpointing,
    }


def sizes_to_compile(plan: Plan) -> dict[str, int | None]:
    """Return phase -> the micro-batch to compile for another machine: the one that training would choose, or the smallest."""
    if plan.own_machine or plan.recipe.run.topology is None:
        return {}
    sizes: dict[str, int | None] = {}
    tokenizer, _ = tokenizer_of(plan)
    for phase, settings in plan.recipe.pretrain.items():
        try:
            sizes[phase] = fill_in_micro_batch(plan, phase, tokenizer)[0].recipe.run.micro_batch_size
        except RelmError:  # the compiler may still accept it
            sizes[phase] = min(possible_sizes(settings, plan.recipe.run))
    return sizes


def compilation_of(plan: Plan, programs: Iterable[tuple[TracedProgram, Compiled]]) -> Compilation:
    """Return a run's programs with the results of compiling them."""
    found = list(programs)
    chosen = {traced.request.phase: traced.request.micro_batch_size for traced, _ in found}
    return Compilation(
        recipe=plan.run_name,
        **slice_facts(topology_of(plan)),
        **recipe_facts(plan, chosen),
        vocabulary=found[0][0].vocabulary,
        programs=tuple(
            CompiledProgram(phase=traced.request.phase, name=traced.name, compiled=result) for traced, result in found
        ),
    )
