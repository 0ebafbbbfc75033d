"""What `relm estimate` adds where the TPU's compiler was asked, and where it could be."""

from collections.abc import Iterator
from pathlib import Path

from relm.compilation.consequences_in_words import consequences_lines
from relm.compilation.result import read_compilation
from relm.errors import RelmError
from relm.plan import Plan


def compiled_lines(plan: Plan, only: str | None, price: float | None, stated: Path | None) -> Iterator[str]:
    """What follows from `compile.json`, after an empty line; nothing for a recipe that no TPU is meant for and none compiled.

    Args:
        only: one phase; None: all.
        price: of an hour of one chip.
        stated: the file; None: that in the work folder, and where it is not of the recipe as it is, a line says so.

    Raises:
        RelmError: the stated file is damaged or not of this recipe.
    """
    if stated is not None:
        yield ""
        yield from _lines_of(stated, plan, only, price)
        return
    again = f"relm compile {plan.name} --output {plan.compilation}"
    if plan.compilation.is_file():
        try:
            found = [*_lines_of(plan.compilation, plan, only, price)]
        except RelmError as error:
            found = [f"{plan.compilation} is left out: {error}: {again}"]
        yield from ["", *found]
    elif plan.recipe.run.device == "tpu":
        yield ""
        yield f"the TPU's own compiler says, without a TPU, whether it fits and how many bytes a step moves: {again}"


def _lines_of(path: Path, plan: Plan, only: str | None, price: float | None) -> list[str]:
    compilation = read_compilation(path)
    if compilation.recipe != plan.name:
        raise RelmError(f"{path} is of recipe {compilation.recipe}, not of {plan.name}")
    return [*consequences_lines(compilation, plan.recipe, only, price)]
