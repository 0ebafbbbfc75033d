"""The part of `relm estimate` that reports the TPU compiler's figures, or the command that produces them."""

from collections.abc import Iterator

from relm.errors import RelmError
from relm.forecast.compilation.consequences import consequences_lines
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.training.machine.compiled_table import find_compilation


def compiled_lines(plan: Plan) -> Iterator[str]:
    """Yield the consequences of compiled programs, or why they are left out; nothing for a recipe that is not for a TPU."""
    again, found = f"relm compile {plan.name} --output {plan.compilation}", list[str]()
    try:
        if (compilation := find_compilation(plan)) is not None:
            found = [*consequences_lines(compilation, plan.recipe)]
        elif "compile" in DEVICES[plan.recipe.run.device].steps:
            found = [f"the TPU's own compiler reports, without a TPU, whether it fits and how many bytes a step moves: {again}"]
    except RelmError as error:
        source = plan.compilation if plan.compilation.is_file() else "docs/compiled.json"
        found = [f"{source} is left out: {error}: {again}"]
    yield from ["", *found] if found else []
