"""The smoke twin changes what it may change, and nothing else."""

from pathlib import Path

import pytest

from relm.recipes.datasets import load_dataset
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.smoke import smoke_twin
from twin_keys import MAY_CHANGE, changed_keys, may_change

CHECKOUT = Path(__file__).resolve().parents[2]
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
        load_dataset(PROJECT.path_of("data", recipe.data.dataset)),
    )
    assert (twin.pretrain["main"].steps, twin.pretrain["main"].schedule.warmup_steps) == (20, 5)
    assert twin.run.micro_batch_size == twin.pretrain["main"].global_batch_size // 2


ARCHITECTURES = {
    "bert": {
        "architecture": "bert",
        "layers": 24,
        "heads": 16,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "positions": 512,
    },
    "mt5": {"architecture": "mt5", "layers": 12, "heads": 12, "hidden_size": 768, "intermediate_size": 2048},
}
OBJECTIVES = {
    "bert": {"objective": "masked", "masked": {"packing": "sentence_pairs", "max_predictions": 75}},
    "mt5": {"objective": "seq2seq", "seq2seq": {"target_length": 256}},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("batch", [8, 256, 3])
def test_any_architecture_and_batch_has_a_small_twin(name: str, batch: int) -> None:
    resolved = PROJECT.plan("quickstart").recipe.model_dump()
    phase = {
        **OBJECTIVES[name],
        "sequence_length": 512,
        "global_batch_size": batch,
        "steps": 100,
        "optimizer": {"learning_rate": 1e-3},
        "loss_normalisation": "per_replica",
        "loss_shares": batch,
    }
    recipe = Recipe.model_validate(
        resolved | {"model": ARCHITECTURES[name], "pretrain": {"main": phase}, "evaluate": [], "run": {"micro_batch_size": 1}}
    )
    twin = smoke_twin(recipe, load_dataset(PROJECT.path_of("data", recipe.data.dataset)))
    assert [path for path in changed_keys(recipe.model_dump(), twin.model_dump()) if not may_change(path)] == []
    assert twin.pretrain["main"].sequence_length == 64
    assert twin.model.hidden_size == 64


def test_a_twin_of_a_tpus_run_trains_on_xlas_cpu_client_where_that_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(name: str) -> str:
        return Project(CHECKOUT).plan(f"smoke/{name}").recipe.run.device

    for variable, found in {"CPU": "tpu", "TPU": "cpu", "": "cpu"}.items():
        monkeypatch.setenv("PJRT_DEVICE", variable)
        assert device("roberta_base_v3-8") == found
        assert device("quickstart") == "cpu"
