"""The published peak of a run's machine. Imports no torch."""

import dataclasses

from relm.recipes.devices import DEVICES
from relm.recipes.machine.machines import Machine
from relm.recipes.plan import Plan

PASSES = {None: 1, "default": 1, "high": 3, "highest": 6}
"""Precision of products of float32 tensors -> passes that PyTorch/XLA takes through a unit for bfloat16."""


def find_peak(machine: Machine, precision: str, products: str | None = None) -> float | None:
    """Return the peak of one device in 10^12 operations per second; None: no figure is published.

    A TPU has no peak for float32: a product of float32 tensors takes one or several passes in bfloat16, depending on
    `products`, the run's `float32_matmul_precision`. An IPU has none for bfloat16: its pipelines compute in float16 instead.
    """
    if machine.peak is None:
        return None
    published: float | None = getattr(machine.peak, precision)
    if published is None and precision == "float32" and machine.topology is not None and machine.peak.bfloat16 is not None:
        return machine.peak.bfloat16 / PASSES[products]
    if published is None and precision == "bfloat16" and DEVICES[machine.device].pipelined:
        return machine.peak.float16
    return published


def fill_in_peak(plan: Plan, phase: str) -> Plan:
    """Return the plan with the published peak of its machine as `run.peak_teraflops`, if the recipe states none.

    It is the peak of a whole accelerator (of a TPU, a chip), because training counts these. The plan is unchanged if none is
    published, or if one process drives several accelerators without a slice.
    """
    machine, run = plan.machine, plan.recipe.run
    if (
        machine is None
        or run.peak_teraflops is not None
        or (machine.slice is None and machine.processes != machine.device_count)
    ):
        return plan
    peak = find_peak(machine, plan.recipe.pretrain[phase].precision, run.float32_matmul_precision)
    if peak is None:
        return plan
    filled = run.model_copy(update={"peak_teraflops": peak * machine.device_count / machine.chip_count})
    return dataclasses.replace(plan, recipe=plan.recipe.model_copy(update={"run": filled}))
