"""HBM, FLOPs and bytes of our compiled step and of the same step of `transformers`.

    python benchmarks/compiled.py NAME@MACHINE ...

For the recipe's slice, by the TPU's own compiler, on a machine without a TPU: needs `make .venv-tpu/made-from`. Ours is the
program of the recipe, read from docs/compiled.json where it is there. The other is the library's model at the same sizes,
global batch, precision, clipping and optimizer (PyTorch's AdamW, the library's Adafactor), dealt out to the devices as ours is,
its loss taken at every position as its models take it. --alone compares besides what one device does of its part of the batch
where nothing is summed. What the compiler made of a program is kept in `work/compiled`.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relm.forecast.compilation.compiling import ProgramRequest, TracedProgram, compile_program, topology_of, trace_programs
from relm.forecast.compilation.program_table import GIB
from relm.forecast.compilation.shipped_programs import key_of, read_shipped
from relm.forecast.compilation.tpu_environment import CHECKOUT, find_interpreter
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.project import Project
from relm.training.architecture import configuration
from relm.training.machine.compile_record import Compiled, Program


def comparable() -> list[str]:
    """Runs whose step is one program: micro-batches are several, and no step of transformers is like them."""
    return sorted({row.run for row in read_shipped().rows if row.name == "step"})


def slice_of(recipe_name: str) -> str:
    """Return the TPUs that a recipe is for."""
    return topology_of(Project(CHECKOUT).plan(recipe_name))


def shape_of(recipe_name: str, alone: bool) -> dict[str, Any]:
    """Return the arguments of `transformers_step.py` for a recipe of one phase.

    Args:
        alone: trace only what one device does with its part of the batch.
    """
    plan = Project(CHECKOUT).plan(recipe_name)
    (phase,) = plan.recipe.pretrain.values()
    devices = TOPOLOGIES[slice_of(recipe_name)].devices
    return {
        "config": configuration(plan.recipe, tokenizer_of(plan)[0]).to_huggingface(),
        "batch": phase.global_batch_size // (devices if alone else 1),
        "devices": 1 if alone else devices,
        "of": devices,
        "length": phase.sequence_length,
        "target_length": phase.seq2seq.target_length if phase.seq2seq else None,
        "precision": phase.precision,
        "optimizer": phase.optimizer.name,
        "clipping": phase.optimizer.gradient_clipping,
    }


def traced_by(script: str, argument: str, devices: int, request: ProgramRequest, folder: Path) -> TracedProgram:
    """Run a script of this folder in a process with this number of devices, and return the program that it traces."""
    hlo = folder / "step.hlo"
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "PYTHONPATH": str(CHECKOUT / "src")}
    command = [str(find_interpreter()), str(CHECKOUT / "benchmarks" / script), argument, str(hlo)]
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True)
    program = Program.model_validate_json(done.stdout.splitlines()[-1])
    return TracedProgram(request, "step", program, hlo, "")


def their_program(name: str, topology: str, shape: dict[str, Any], folder: Path) -> TracedProgram:
    """Return the library's step."""
    (folder / "shape.json").write_text(json.dumps(shape))
    request = ProgramRequest(f"transformers' step of {name}, devices: {shape['devices']}", "main", topology)
    return traced_by("transformers_step.py", str(folder / "shape.json"), shape["devices"], request, folder)


def theirs(name: str, alone: bool) -> Compiled:
    """Compile the library's step and return the result."""
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        return compile_program(their_program(name, slice_of(name), shape_of(name, alone), Path(folder)))


def ours(name: str, alone: bool) -> Compiled:
    """Return the compiled program of relm's step, from the records or compiled now."""
    topology = slice_of(name)
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        if alone:
            request = ProgramRequest(f"a device's own step of {name}", "main", topology)
            return compile_program(traced_by("own_step_alone.py", name, 1, request, Path(folder)))
        program = next(
            (each for each in trace_programs([ProgramRequest(name, "main", topology)], Path(folder)) if each.name == "step"),
            None,
        )
        if program is None:
            raise SystemExit(f"{name}: a step has micro-batches, so several programs; no step of transformers is like it")
        return read_shipped().programs.get(key_of(program)) or compile_program(program)


def figures(made: Compiled) -> dict[str, float]:
    """Return the figures to compare; none where the compiler rejected the program."""
    if made.memory is None or made.flops is None or made.bytes_accessed is None:
        return {}
    return {"HBM, GiB": made.memory.peak / GIB, "FLOPs": made.flops, "bytes": made.bytes_accessed}


def said(name: str, made: Compiled) -> str:
    """Return one side in words."""
    if made.refusal is not None:
        return f"{name} REFUSED: {made.refusal.figures}"
    return f"{name} " + ", ".join(f"{what} {value:.4g}" for what, value in figures(made).items())


def compare(what: str, mine: Compiled, other: Compiled) -> None:
    """Print both sides and, where both fit, ours as a share of the other."""
    print(f"  {what}\n    {said('transformers', other)}\n    {said('relm        ', mine)}", flush=True)
    if mine.fits and other.fits:
        there = figures(other)
        print("    ratio        " + ", ".join(f"{what} {value / there[what]:.3f}" for what, value in figures(mine).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs",
        nargs="*",
        default=comparable(),
        help="runs on TPUs of one phase and micro-batch; default: all of them",
    )
    parser.add_argument("--alone", action="store_true", help="also one device's part of the batch, without the sums")
    given = parser.parse_args()
    for name in given.runs:
        print(name)
        compare(f"{TOPOLOGIES[slice_of(name)].devices} devices", ours(name, alone=False), theirs(name, alone=False))
        if given.alone:
            compare("one of them alone", ours(name, alone=True), theirs(name, alone=True))


if __name__ == "__main__":
    main()
