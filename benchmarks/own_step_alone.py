"""Trace a recipe's step on one device of its slice and its part of the batch, without sums; for `benchmarks/compiled.py`.

PJRT_DEVICE=CPU CPU_NUM_DEVICES=1 .venv-tpu/bin/python benchmarks/own_step_alone.py RECIPE STEP.hlo
"""

import sys
from contextlib import closing
from pathlib import Path

from relm.forecast.compilation.tracing import TracingDevice, trace_phase
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe


def devices_of(recipe: Recipe) -> int:
    """Return the count of devices of the slice."""
    return TOPOLOGIES[str(recipe.run.topology)].devices


def part_of(recipe: Recipe) -> Recipe:
    """Return the recipe of one phase with one device's part of its batch."""
    ((name, phase),) = recipe.pretrain.items()
    part = phase.model_copy(update={"global_batch_size": phase.global_batch_size // devices_of(recipe)})
    run = recipe.run.model_copy(update={"topology": None})
    return recipe.model_copy(update={"pretrain": {name: part}, "run": run})


def main(name: str, hlo: Path) -> None:
    plan = Project().plan(name)
    recipe = part_of(plan.recipe)
    with closing(TracingDevice(recipe.run, one=True)) as device:
        traced, program = trace_phase(recipe, *recipe.pretrain, tokenizer_of(plan)[0], device)["step"]
    hlo.write_bytes(traced.hlo)
    print(traced.to_program(devices_of(plan.recipe), program.parameters).model_dump_json())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
