"""The runs of a recipe with `seeds`: the same recipe with one seed after another."""

from typing import Any

from relm.recipes.evaluation.evaluations import EVALUATIONS
from relm.recipes.recipe import Recipe


def choose_seed(recipe: Recipe, number: int) -> Recipe:
    """Return the recipe of one of the runs of `seeds`, counted from 0; the first is that of the recipe itself."""
    if number == 0:
        return recipe
    update: dict[str, Any] = {"seed": recipe.seed + number, "seeds": 1}
    for declaration in EVALUATIONS:
        if declaration.seed_of_run:
            options = getattr(recipe, declaration.name)
            update[declaration.name] = options.model_copy(update={"seed": options.seed + number})
    return recipe.model_copy(update=update)
