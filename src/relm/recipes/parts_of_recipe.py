"""Check that the dataset and models of a recipe have what it asks of them."""

import re
from collections.abc import Mapping
from pathlib import Path

from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.evaluation.expectations import Expectation
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.evaluation.reference_runs import ReferenceRuns
from relm.recipes.machine.pipeline import split_tuning_batch
from relm.recipes.plan import Plan
from relm.recipes.recipe import Recipe


def require_sound_parts(path: Path, plan: Plan) -> None:
    """Raise if the models, the dataset or the tests of a planned recipe do not fit it."""
    recipe = plan.recipe
    if plan.tokenizer_model is not None and plan.tokenizer_model.tokenizer is None:
        raise RelmError(f"{path}: tokenizer.from_model: {recipe.tokenizer.from_model} has no tokenizer among its files")
    for key, model in {"init_from": plan.init_model, "expect_reference": plan.reference_model}.items():
        if model is not None and not model.weights:
            found = getattr(recipe, key)
            raise RelmError(f"{path}: {key}: {found} declares no weights; set weights: true in its file if it has them")
    _require_documents(path, recipe, plan.dataset)
    for name, test in plan.tests.items():
        _require_fitting_test(f"{path}: evaluate: {name}", recipe, test)
    require_countable_tests(path, recipe, plan.dataset, plan.removed_tests)
    for number, row in enumerate(recipe.expect):
        if row.reference_runs is not None:
            where = f"{path}: expect.{number}.reference_runs: {row.reference_runs}"
            _require_fitting_runs(where, recipe, row, plan.reference_runs[row.reference_runs].content)


def _require_fitting_test(where: str, recipe: Recipe, test: PublishedTest) -> None:
    """Raise if a published test does not suit the last phase's objective, or its windows or batches do not fit."""
    last, longest, pipeline = list(recipe.pretrain.values())[-1].objective, recipe.model.longest_sequence, recipe.run.pipeline
    if last not in test.objectives:
        raise RelmError(f"{where}: for objective {' or '.join(test.objectives)}; the last phase has {last}")
    if test.tuning is not None and longest is not None and test.tuning.sequence_length > longest:
        raise RelmError(
            f"{where}: its sequences have {test.tuning.sequence_length} tokens, and model.positions is {longest}; name a test "
            f"with a shorter {test.protocol}.sequence_length, or remove this one"
        )
    if test.tuning is not None and pipeline is not None and pipeline.instances == 1:
        try:
            split_tuning_batch(pipeline, test.tuning.batch_size)
        except ValueError as error:
            raise RelmError(f"{where}: {test.protocol}.{error}") from None


def _require_fitting_runs(where: str, recipe: Recipe, row: Expectation, runs: ReferenceRuns) -> None:
    """Raise if reference runs have another metric than their row, or another program than the recipe's `source`."""
    if runs.metric != row.metric:
        raise RelmError(f"{where}: has figures of {runs.metric}, and the row is on {row.metric}; name other runs")
    commit = re.search(rf"{re.escape(runs.program)} at ([0-9a-f]{{7,40}})\b", recipe.source or "")
    if commit is None or not runs.commit.startswith(commit[1]):
        raise RelmError(f"{where}: ran {runs.place}, and `source` is {recipe.source}; name runs of the recipe's source")


def require_countable_tests(path: Path, recipe: Recipe, dataset: Dataset, removed: Mapping[str, PublishedTest]) -> None:
    """Raise if `data.remove` has nothing to remove, or needs documents or items that cannot be read."""
    if recipe.data.remove is None:
        return
    key = f"{path}: data.remove"
    if dataset.is_tokenized:
        raise RelmError(f"{key}: needs documents, and {recipe.data.dataset} has tokens ({dataset.format}); remove it")
    if unread := [name for name, test in removed.items() if test.item_format is None]:
        raise RelmError(
            f"{key}: cannot read items of the protocol {removed[unread[0]].protocol}, which {unread[0]} has; remove one of them"
        )
    if not (recipe.data.remove.duplicates or removed):
        raise RelmError(f"{key}: removes nothing; set duplicates: true, name tests, or remove it")


def _require_documents(path: Path, recipe: Recipe, dataset: Dataset) -> None:
    """Raise if a recipe needs documents and its dataset has tokens."""
    if not dataset.is_tokenized:
        return
    wrong = [f"pretrain.{name}.objective" for name, phase in recipe.pretrain.items() if phase.suffix != ".bin"]
    wrong += ["data.documents"] if recipe.data.documents is not None else []
    wrong += ["tokenizer.train"] if recipe.tokenizer.train is not None else []
    if wrong:
        raise RelmError(
            f"{path}: {wrong[0]}: needs documents, and {recipe.data.dataset} has tokens ({dataset.format}); expected a "
            "tokenizer with from_model, no limit of documents, and an objective that reads a stream, such as causal"
        )
