"""The smoke twin changes what it may change, and nothing else."""

from pathlib import Path

import pytest

from relm.catalogue import load_dataset
from relm.plan import Project
from relm.smoke import MAY_CHANGE, changed_keys, may_change, smoke_twin

CHECKOUT = Path(__file__).resolve().parent.parent
PROJECT = Project(CHECKOUT)


@pytest.mark.parametrize("name", PROJECT.names())
def test_every_recipe_and_its_twin_differ_in_declared_keys_only(name: str) -> None:
    recipe, twin = PROJECT.plan(name).recipe, PROJECT.plan(f"smoke/{name}").recipe
    changed = list(changed_keys(recipe.model_dump(), twin.model_dump()))
    assert changed
    assert [path for path in changed if not may_change(path)] == []


@pytest.mark.parametrize("name", PROJECT.names())
def test_a_twin_has_its_own_fingerprint_phases_and_tasks(name: str) -> None:
    plan, twin = PROJECT.plan(name), PROJECT.plan(f"smoke/{name}")
    assert plan.phases == twin.phases
    assert plan.recipe.evaluate == twin.recipe.evaluate
    if plan.dataset.files:
        assert plan.fingerprint != twin.fingerprint


def test_what_a_run_means_beyond_its_size_is_not_on_the_list() -> None:
    for path in ("pretrain.main.objective", "pretrain.main.optimizer.learning_rate", "model.activation", "evaluate", "seed"):
        assert not may_change(path), path
    assert all(may_change(pattern.replace("*", "main")) for pattern in MAY_CHANGE)


def test_a_warm_up_keeps_its_share_and_accumulation_stays(tmp_path: Path) -> None:
    recipe = PROJECT.plan("quickstart").recipe
    phase = next(iter(recipe.pretrain.values()))
    longer = phase.model_copy(update={"steps": 1000, "schedule": phase.schedule.model_copy(update={"warmup_steps": 250})})
    run = recipe.run.model_copy(update={"micro_batch_size": phase.global_batch_size // 2})
    twin = smoke_twin(
        recipe.model_copy(update={"pretrain": {"main": longer}, "run": run}),
        load_dataset(PROJECT.dataset_path(recipe.data.dataset)),
    )
    assert (twin.pretrain["main"].steps, twin.pretrain["main"].schedule.warmup_steps) == (20, 5)
    assert twin.run.micro_batch_size == twin.pretrain["main"].global_batch_size // 2
