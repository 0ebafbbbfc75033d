"""Training equals each original's own program, step for step; a planted fault makes that false from a named step on."""

import dataclasses
import fnmatch
from pathlib import Path

import planted_faults as faults
import pytest
from compare import describe
from comparison import Comparison, compare
from golden_files import STEPS, read_golden
from graphcore_gpt2 import SCHEDULE
from graphcore_gpt2_sizes import UPDATES_OF_A_CALL
from originals import BY_NAME, ORACLES
from our_runs import CHECKOUT, Oracle, train, twin_of

from relm.recipes.optimization import Schedule
from relm.recipes.project import Project
from relm.reporting.oracles import read_oracles
from relm.training.schedules import learning_rate_scale
from twin_keys import MAY_CHANGE, changed_keys


def compare_steps(oracle: Oracle, folder: Path, steps: int = STEPS) -> Comparison:
    golden = read_golden(oracle.name)
    return compare(oracle, golden, train(oracle, golden.initial, folder, steps))


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_training_equals_the_original_program_as_docs_oracles_json_states(oracle: Oracle, tmp_path: Path) -> None:
    found = compare_steps(oracle, tmp_path)
    assert found.first is None
    stated = next(row for row in read_oracles() if row.name == oracle.name)
    measured = describe(oracle, found)
    # Another processor rounds otherwise.
    for figure in ("loss", "gradient_norm", "weights"):
        assert getattr(measured, figure) <= 4 * getattr(stated, figure), f"{figure}: write docs/oracles.json again"
    figures = {figure: getattr(stated, figure) for figure in ("loss", "gradient_norm", "weights")}
    assert dataclasses.replace(measured, **figures) == stated, "write docs/oracles.json again"


def test_every_row_of_docs_oracles_json_is_an_oracle() -> None:
    assert [row.name for row in read_oracles()] == [oracle.name for oracle in ORACLES]


def test_only_graphcores_first_call_has_another_learning_rate_than_the_recipes() -> None:
    """The original's has the peak, because PopTorch read the optimizer before the schedule was made; the recipes' has 0."""
    golden, schedule = read_golden("graphcore_gpt2"), Schedule.model_validate(SCHEDULE)
    recipes = [1.5e-4 * learning_rate_scale(schedule, step, STEPS) for step in range(1, STEPS + 1)]
    assert golden.learning_rates[:UPDATES_OF_A_CALL] == [1.5e-4] * UPDATES_OF_A_CALL
    assert recipes[:UPDATES_OF_A_CALL] == [0.0] * UPDATES_OF_A_CALL
    assert recipes[UPDATES_OF_A_CALL:] == pytest.approx(golden.learning_rates[UPDATES_OF_A_CALL:], rel=1e-12, abs=0)


# Patterns of the keys that an oracle's twin may change: sizes, lengths of schedules, dropout and precision.
TWIN_MAY_CHANGE = (
    *MAY_CHANGE,
    "model.*dropout*",
    "model.head_size",
    "model.key_value_heads",
    "model.intermediate_size",
    "tokenizer.*",
    "pretrain.*.precision",
    "pretrain.*.loss_scaling*",
    "pretrain.*.seq2seq.target_length",
    "pretrain.*.as_published.*",
    "pretrain.*.masked.*",
    "pretrain.*.schedule.*",
    "pretrain.*.optimizer.learning_rate",
    "evaluate",
    "random_windows",
    "expect*",
)
RECIPES = [(oracle, name) for oracle in ORACLES for name in oracle.recipes]


@pytest.mark.parametrize(("oracle", "name"), RECIPES, ids=lambda value: getattr(value, "name", value))
def test_twin_size_changes_only_sizes(oracle: Oracle, name: str) -> None:
    shipped, twin = (recipe.model_dump() for recipe in (Project(CHECKOUT).plan(name).recipe, twin_of(oracle, name)))
    changed = [
        path for path in changed_keys(shipped, twin) if not any(fnmatch.fnmatchcase(path, one) for one in TWIN_MAY_CHANGE)
    ]
    assert changed == list(oracle.also_changes)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_all_recipes_of_an_original_are_one_run_at_twin_size(oracle: Oracle) -> None:
    twins = [twin_of(oracle, name) for name in oracle.recipes]
    assert all((twin.model, twin.pretrain) == (twins[0].model, twins[0].pretrain) for twin in twins)


# Fault, original, the steps that are trained, and the beginning of the first difference.
FAULTS = [
    (faults.LEARNING_RATE, "nanogpt", 2, "step 1: the learning rate is"),
    (faults.SCHEDULE, "nanogpt", 2, "step 1: the learning rate is"),
    (faults.BETAS, "nanogpt", 4, "step 3: the loss is"),
    (faults.DECAY, "nanogpt", 3, "step 2: the gradient norm is"),
    (faults.ORDER, "nanogpt", 5, "step 4: the batch has sha256"),
    (faults.DIVISOR, "nanogpt", 2, "step 1: the loss is"),
    (faults.DECAY, "tpu_pretrain", 9, "step 8: the gradient norm is"),
    (faults.DIVISOR, "tpu_pretrain", 2, "step 1: the loss is"),
    (faults.MEAN_OF_MEANS, "run_mlm", 2, "step 1: the loss is"),
    (faults.CLIPPING, "run_mlm", 3, "step 2: the gradient norm is"),
    (faults.SCHEDULE, "graphcore_bert", 2, "step 1: the learning rate is"),
    (faults.BETAS, "llama2_c", 4, "step 3: the loss is"),
    (faults.LEARNING_RATE, "t5x_diacritics", 2, "step 1: the learning rate is"),
    (faults.ORDER, "t5x_diacritics", 5, "step 4: the batch has sha256"),
    (faults.CLIPPING, "nanogpt", 4, "step 3: the loss is"),
    (faults.LEARNING_RATE, "llm_c_python", 1, "step 1: the learning rate is"),
    (faults.MICRO_BATCH_ALONE, "llm_c_python", 1, "step 1: the loss is"),
    (faults.BETAS, "llm_c", 4, "step 3: the loss is"),
    (faults.CLIPPING_ADDED, "llm_c", 4, "step"),
    (faults.ORDER, "llm_c", 4, "step 4: the batch has sha256"),
    (faults.SCHEDULE, "graphcore_gpt2", 4, "step 4: the learning rate is"),
    (faults.ORDER, "graphcore_gpt2", 4, "step 4: the batch has sha256"),
    (faults.DIVISOR, "graphcore_gpt2", 1, "step 1: the loss is"),
    (faults.SOFTCAP, "modded_nanogpt_muon", 1, "step 1: the loss is"),
    (faults.HALF_ROTARY, "modded_nanogpt_muon", 1, "step 1: the loss is"),
    (faults.QUERY_KEY_NORM, "modded_nanogpt_muon", 1, "step 1: the loss is"),
    (faults.COEFFICIENTS, "modded_nanogpt_muon", 2, "step 2: the loss is"),
    (faults.WIDTHS, "modded_nanogpt_muon", 2, "step 2: the loss is"),
    (faults.GROUPS, "modded_nanogpt_muon", 2, "step 2: the loss is"),
    (faults.SCHEDULE, "modded_nanogpt_adamw", 1, "step 1: the learning rate is"),
    (faults.GROUPS, "modded_nanogpt_adamw", 2, "step 2: the loss is"),
    (faults.ORDER, "modded_nanogpt_adamw", 4, "step 4: the batch has sha256"),
]


@pytest.mark.parametrize(("fault", "name", "steps", "found"), FAULTS, ids=lambda value: getattr(value, "name", value))
def test_a_planted_fault_is_named_with_its_first_step(
    fault: faults.Fault, name: str, steps: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)
    first = compare_steps(BY_NAME[name], tmp_path, steps).first
    assert first is not None
    assert first.startswith(found), first
