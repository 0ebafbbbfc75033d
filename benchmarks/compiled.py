"""HBM, FLOPs and bytes of our compiled step and of the same step of `transformers`: `python benchmarks/compiled.py RECIPE ...`.

For a v3-8, by the TPU's own compiler, on a machine without a TPU: needs `make .venv-tpu/made-from`. Ours is the program of the
recipe, read from docs/compiled.json where it is there. The other is the library's model at the same sizes, global batch,
precision, clipping and optimizer (PyTorch's AdamW, the library's Adafactor), dealt out to the cores as ours is, its loss taken
at every position as its models take it. --alone compares besides what one core does of its part of the batch where nothing is
summed over cores. What the compiler made of a program is kept in `work/compiled`.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relm.compilation.compiling import TracedProgram, Wish, compiled, traced
from relm.compilation.environment import CHECKOUT, python
from relm.compilation.result import Compiled, Program
from relm.compilation.shipped import read_shipped
from relm.compilation.table import GIB
from relm.launch.expected_tokenizer import tokenizer_of
from relm.plan import Project
from relm.topologies import TOPOLOGIES
from relm.training.architecture import configuration

TOPOLOGY = "v3-8"
CORES = TOPOLOGIES[TOPOLOGY].devices
RECIPES = (
    "bert_large_wikitext103_v3-8_fp32",
    "bert_large_wikitext103_v3-8_bf16",
    "roberta_base_v3-8",
    "mt5_base_romanian_diacritics_v3-8",
)


def shape_of(recipe_name: str, devices: int) -> dict[str, Any]:
    """What `transformers_step.py` is to trace for a recipe of one phase.

    Args:
        devices: to which the batch is dealt out; 1: a core's own part of it.
    """
    plan = Project(CHECKOUT).plan(recipe_name)
    (phase,) = plan.recipe.pretrain.values()
    return {
        "config": configuration(plan.recipe, tokenizer_of(plan)[0]).to_huggingface(),
        "batch": phase.global_batch_size * devices // CORES,
        "devices": devices,
        "length": phase.sequence_length,
        "target_length": phase.seq2seq.target_length if phase.seq2seq else None,
        "precision": phase.precision,
        "optimizer": phase.optimizer.name,
        "clipping": phase.optimizer.gradient_clipping,
    }


def traced_by(script: str, argument: str, devices: int, what: str, folder: Path) -> TracedProgram:
    """A program traced by a script beside this one, in a process that has so many devices."""
    hlo = folder / "step.hlo"
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "PYTHONPATH": str(CHECKOUT / "src")}
    command = [str(python()), str(CHECKOUT / "benchmarks" / script), argument, str(hlo)]
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True)
    program = Program.model_validate_json(done.stdout.splitlines()[-1])
    return TracedProgram(Wish(what, "main", TOPOLOGY), "step", program, hlo, "")


def theirs(name: str, devices: int) -> Compiled:
    """What the compiler makes of the library's step."""
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        shape = Path(folder) / "shape.json"
        shape.write_text(json.dumps(shape_of(name, devices)))
        what = f"transformers' step of {name} on {devices} cores"
        return compiled(traced_by("transformers_step.py", str(shape), devices, what, Path(folder)))


def alone(name: str) -> Compiled:
    """What it makes of ours where a core has nobody to sum with."""
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        return compiled(traced_by("own_step_alone.py", name, 1, f"a core's own step of {name}", Path(folder)))


def ours(name: str) -> Compiled:
    """What the compiler made of our step, or makes of it now."""
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        (program,) = (each for each in traced([Wish(name, "main", TOPOLOGY)], Path(folder)) if each.name == "step")
        known = read_shipped().compiled.get(program.program.sha256, {})
        return known.get(TOPOLOGIES[TOPOLOGY].layout) or compiled(program)


def figures(made: Compiled) -> dict[str, float]:
    """What is compared; nothing where the program was refused."""
    if made.memory is None or made.flops is None or made.bytes_accessed is None:
        return {}
    return {"HBM, GiB": made.memory.peak / GIB, "FLOPs": made.flops, "bytes": made.bytes_accessed}


def said(name: str, made: Compiled) -> str:
    """One side in words."""
    if made.refusal is not None:
        return f"{name} REFUSED: {made.refusal.used}iB of {made.refusal.capacity}iB"
    return f"{name} " + ", ".join(f"{what} {value:.4g}" for what, value in figures(made).items())


def compare(what: str, mine: Compiled, other: Compiled) -> None:
    """Print both sides and, where both fit, ours as a share of the other."""
    print(f"  {what}\n    {said('transformers', other)}\n    {said('relm        ', mine)}", flush=True)
    if mine.fits and other.fits:
        there = figures(other)
        print("    ratio        " + ", ".join(f"{what} {value / there[what]:.3f}" for what, value in figures(mine).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES, help="v3-8 recipes of one phase (without any: all originals)")
    parser.add_argument("--alone", action="store_true", help="also one core's part of the batch, without the sums")
    given = parser.parse_args()
    for name in given.recipes:
        print(name)
        compare(f"{CORES} cores", ours(name), theirs(name, CORES))
        if given.alone:
            compare("a core alone", alone(name), theirs(name, 1))


if __name__ == "__main__":
    main()
