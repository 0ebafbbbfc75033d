"""A dataset that stands in the place of the original's corpus is the first deviation of a run."""

from relm.recipes.datasets import load_dataset
from relm.recipes.project import Project, with_substitution
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
CORPUS = "English Wikipedia of an unstated date, some 2.5 billion wordpieces"


def test_the_first_deviation_names_both_corpora_and_the_others_follow() -> None:
    plan = PROJECT.plan("bert_base_pod16")
    first, *others = plan.recipe.deviations
    assert first == (
        f"The original was trained on {CORPUS}. The dataset wikitext_103_raw stands in its place: {plan.dataset.title}."
    )
    assert others[1] == "Sentences are found by relm's rules instead of nltk's punkt."


def test_another_dataset_is_named_and_a_recipe_without_the_key_is_unchanged() -> None:
    recipe = PROJECT.plan("bert_large_pod16").recipe
    books = load_dataset(PROJECT.path_of("data", "bookcorpusopen"))
    other = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"dataset": "bookcorpusopen"}), "deviations": ["A."]}
    )
    assert with_substitution(other, books).deviations == [
        f"The original was trained on {CORPUS}. The dataset bookcorpusopen stands in its place: {books.title}.",
        "A.",
    ]
    without = recipe.model_copy(update={"original_corpus": None})
    assert with_substitution(without, books) is without


def test_a_resolved_recipe_that_is_read_again_has_the_sentence_once() -> None:
    plan = PROJECT.plan("bert_base_pod16")
    assert with_substitution(plan.recipe, plan.dataset).deviations == plan.recipe.deviations
