"""A recipe on a machine that is not its own: whether the machine can divide its batches, and how the run deviates there."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from relm.errors import RelmError
from relm.recipes.devices import DEVICES
from relm.recipes.machine.machines import Machine
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe


def divides(machine: Machine, phase: Phase) -> bool:
    """Return True if a machine's processes and devices divide each micro-batch that a phase can have."""
    part, rest = divmod(phase.global_batch_size, machine.processes)
    devices = 1 if machine.slice is None else machine.device_count
    return rest == 0 and math.gcd(part, phase.share_size) % devices == 0


def can_place(recipe: Recipe, name: str, machine: Machine) -> bool:
    """Return True unless a machine's device needs a pipeline, and the recipe has none for it."""
    device = DEVICES[machine.device]
    has_pipeline = name in recipe.on and recipe.on[name].pipeline is not None
    return has_pipeline or not device.pipelined


def require_division(
    recipe: Recipe, name: str, machine: Machine, path: Path, machines: Callable[[], Mapping[str, Machine]]
) -> None:
    """Raise unless a machine can divide the batches of all phases of a recipe.

    Args:
        name: the machine's name.
        path: the recipe's file, for the message.
        machines: function that returns all machines, of which the message lists those that can and that relm can train on.
    """
    refused = next((key for key, phase in recipe.pretrain.items() if not divides(machine, phase)), None)
    if refused is None:
        return
    phase = recipe.pretrain[refused]
    able = [
        other
        for other, known in machines().items()
        if can_place(recipe, other, known) and all(divides(known, each) for each in recipe.pretrain.values())
    ]
    shares = f" in {phase.loss_shares} loss_shares" if phase.loss_shares > 1 else ""
    raise RelmError(
        f"{path}: pretrain.{refused}.global_batch_size: {phase.global_batch_size} sequences{shares} cannot be divided evenly "
        f"among the {machine.device_count} devices of {name}. Choose a machine that can divide them: "
        f"{', '.join(able) or 'none of recipes/machines/ can'}"
    )


def describe_deviation(recipe: Recipe, own: str | None, name: str, machine: Machine) -> str:
    """Return the sentence on a run on another machine, with the arithmetic of its matrix products.

    Args:
        own: the recipe's own machine; None: the recipe names none.
        name: the name of the machine.
        machine: the machine.
    """
    precisions = dict.fromkeys(phase.precision for phase in recipe.pretrain.values())
    device = DEVICES[machine.device]
    matmul = recipe.run.float32_matmul_precision or device.float32_matmul_precision
    float32 = device.float32_products.get(str(matmul), f"with float32_matmul_precision: {matmul or 'unknown'}")
    products = [
        f"matrix products of float32 are multiplied {float32}"
        if precision == "float32"
        else f"matrix products are computed in {precision}, as the recipe's precision says"
        for precision in precisions
    ]
    other = "no machine is named in the recipe" if own is None else f"the recipe's own machine is {own}"
    return f"This run is on {name} ({machine.title}; device {machine.device}), and {other}: {'; '.join(products)}."
