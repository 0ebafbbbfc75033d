"""The part of `relm estimate` that reports the TPU compiler's figures, or the command that produces them."""

from collections.abc import Iterator
from pathlib import Path

from relm.errors import RelmError
from relm.forecast.compilation.compile_record import read_compilation
from relm.forecast.compilation.consequence_lines import consequences_lines
from relm.forecast.compilation.shipped_programs import read_shipped, shipped_compilation
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan


def compiled_lines(plan: Plan, only: str | None, price: float | None, stated: Path | None) -> Iterator[str]:
    """Yield the consequences of compiled programs, after an empty line; nothing for a recipe that is not meant for a TPU.

    Args:
        only: one phase; None: all.
        price: the price of an hour of one chip.
        stated: a `compile.json`; None: the one in the work folder, otherwise the recipe's programs in docs/compiled.json. A
            line reports it where either of these belongs to an earlier version of the recipe.

    Raises:
        RelmError: the stated file is damaged or belongs to another recipe.
    """
    if stated is not None:
        yield ""
        yield from _lines_of(stated, plan, only, price)
        return
    again = f"relm compile {plan.name} --output {plan.compilation}"
    source = str(plan.compilation)
    try:
        if plan.compilation.is_file():
            found = _lines_of(plan.compilation, plan, only, price)
        else:
            source = "docs/compiled.json"
            found = _shipped_lines(plan, only, price)
    except RelmError as error:
        found = [f"{source} is left out: {error}: {again}"]
    if not found and "compile" in DEVICES[plan.recipe.run.device].steps:
        found = [f"the TPU's own compiler reports, without a TPU, whether it fits and how many bytes a step moves: {again}"]
    yield from ["", *found] if found else []


def _lines_of(path: Path, plan: Plan, only: str | None, price: float | None) -> list[str]:
    compilation = read_compilation(path)
    if compilation.recipe != plan.run_name:
        raise RelmError(f"{path} belongs to recipe {compilation.recipe}, not to {plan.name}")
    return [*consequences_lines(compilation, plan.recipe, only, price)]


def _shipped_lines(plan: Plan, only: str | None, price: float | None) -> list[str]:
    compilation = shipped_compilation(read_shipped(), plan)
    return [] if compilation is None else [*consequences_lines(compilation, plan.recipe, only, price)]
