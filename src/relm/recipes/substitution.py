"""The sentence that a dataset stands in the place of the corpus on which the original was trained."""

from relm.recipes.datasets import Dataset
from relm.recipes.recipe import Recipe


def with_substitution(recipe: Recipe, dataset: Dataset) -> Recipe:
    """Return a recipe whose first deviation says in whose place its dataset stands, if it names an `original_corpus`."""
    if recipe.original_corpus is None:
        return recipe
    corpus = recipe.original_corpus.rstrip(".")
    sentence = f"The original was trained on {corpus}. The dataset {recipe.data.dataset} stands in its place: {dataset.title}."
    others = [other for other in recipe.deviations if other != sentence]  # a resolved recipe, read again, has it already
    return recipe.model_copy(update={"deviations": [sentence, *others]})
