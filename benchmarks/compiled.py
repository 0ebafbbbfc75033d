"""HBM, FLOPs and bytes of our compiled step and of the same step of `transformers`: `python benchmarks/compiled.py RECIPE ...`.

For one core of a v3-8, by the TPU's own compiler, on a machine without a TPU: needs `make .venv-tpu/made-from`. Ours is the
program of the recipe, read from docs/compiled.json where it is there. The other is the library's model at the same sizes, batch
of a core, precision, clipping and optimizer (PyTorch's AdamW, the library's Adafactor), its loss taken at every position as its
models take it. Ours sums gradients over cores, and that is counted; the other sums nothing, which is in its favour: --alone
compiles ours without. What the compiler made of a program is kept in `work/compiled`.
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
RECIPES = (
    "bert_large_wikitext103_v3-8_fp32",
    "bert_large_wikitext103_v3-8_bf16",
    "roberta_base_v3-8",
    "mt5_base_romanian_diacritics_v3-8",
)


def shape_of(recipe_name: str) -> dict[str, Any]:
    """What `transformers_step.py` is to trace for a recipe of one phase."""
    plan = Project(CHECKOUT).plan(recipe_name)
    (phase,) = plan.recipe.pretrain.values()
    return {
        "config": configuration(plan.recipe, tokenizer_of(plan)[0]).to_huggingface(),
        "batch": phase.global_batch_size // TOPOLOGIES[TOPOLOGY].devices,
        "length": phase.sequence_length,
        "target_length": phase.seq2seq.target_length if phase.seq2seq else None,
        "precision": phase.precision,
        "optimizer": phase.optimizer.name,
        "clipping": phase.optimizer.gradient_clipping,
    }


def traced_by(script: str, argument: str, what: str, folder: Path) -> TracedProgram:
    """A program that each core runs by itself, traced by a script beside this one in a process that has one device."""
    hlo = folder / "step.hlo"
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "PYTHONPATH": str(CHECKOUT / "src")}
    command = [str(python()), str(CHECKOUT / "benchmarks" / script), argument, str(hlo)]
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True)
    program = Program.model_validate_json(done.stdout.splitlines()[-1])
    return TracedProgram(Wish(what, "main", TOPOLOGY), "step", program, hlo, "")


def their_program(name: str, shape: dict[str, Any], folder: Path) -> TracedProgram:
    """The library's step."""
    (folder / "shape.json").write_text(json.dumps(shape))
    return traced_by("transformers_step.py", str(folder / "shape.json"), f"transformers' step of {name}", folder)


def theirs(name: str) -> Compiled:
    """What the compiler makes of the library's step."""
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        return compiled(their_program(name, shape_of(name), Path(folder)))


def alone(name: str) -> Compiled:
    """What it makes of ours where a core has nobody to sum with."""
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        return compiled(traced_by("own_step_alone.py", name, f"a core's own step of {name}", Path(folder)))


def ours(name: str) -> Compiled:
    """What the compiler made of our step, or makes of it now."""
    shipped = read_shipped()
    for row in shipped.rows:
        if (row.recipe, row.name) == (name, "step") and (known := shipped.of(row)) is not None:
            return known
    with TemporaryDirectory(prefix="relm-compile-") as folder:
        (program,) = (each for each in traced([Wish(name, "main", TOPOLOGY)], Path(folder)) if each.name == "step")
        return compiled(program)


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


def compare(name: str, with_alone: bool) -> None:
    """Print all sides and, where both fit, ours as a share of the other."""
    other = theirs(name)
    print(f"{name}\n  {said('transformers', other)}", flush=True)
    sides = {"relm": ours, **({"relm, alone": alone} if with_alone else {})}
    for side, made_by in sides.items():
        made = made_by(name)
        print(f"  {said(f'{side:<12}', made)}", flush=True)
        if made.fits and other.fits:
            there = figures(other)
            print("  ratio        " + ", ".join(f"{what} {value / there[what]:.3f}" for what, value in figures(made).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES, help="v3-8 recipes of one phase (without any: all originals)")
    parser.add_argument("--alone", action="store_true", help="also our step without the sums, as the other has none")
    given = parser.parse_args()
    for name in given.recipes:
        compare(name, given.alone)


if __name__ == "__main__":
    main()
