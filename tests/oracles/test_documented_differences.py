"""The comparison names the step and the quantity in which the default differs from an original (docs/as_published.md)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparison import compare
from golden_files import STEPS, read_golden
from originals import BY_NAME
from our_runs import train

from relm.recipes.project import Project
from relm.recipes.section import merge
from relm.training.schedules import learning_rate_scale
from small_project import CHECKOUT

# Original, the default in place of what follows the original, the steps that are trained, and the first difference.
DIFFERENCES: list[tuple[str, dict[str, Any], int, str]] = [
    ("graphcore_bert", {"model": {"unlearnt_input": "padding"}}, 8, "step 7: the gradient norm is"),
    ("tpu_pretrain", {"model": {"unlearnt_input": "padding"}}, 6, "step 4: the gradient norm is"),
    ("tpu_pretrain", {"pretrain": {"main": {"optimizer": {"decayed": "matrices"}}}}, 4, "step 2: the gradient norm is"),
    ("tpu_pretrain", {"pretrain": {"main": {"schedule": {"by_step": {25: 0.75}}}}}, 26, "step 26: the learning rate is"),
    ("tpu_pretrain", {"pretrain": {"main": {"optimizer": {"form": "pytorch"}}}}, 4, "step 3: the gradient norm is"),
    (
        "tpu_pretrain",
        {"pretrain": {"main": {"loss_normalisation": "global_tokens", "loss_shares": 1}}},
        2,
        "step 2: the loss is",
    ),
]


@pytest.mark.parametrize(("name", "default", "steps", "found"), DIFFERENCES)
def test_the_default_differs_where_it_is_documented(
    name: str, default: dict[str, Any], steps: int, found: str, tmp_path: Path
) -> None:
    golden, oracle = read_golden(name), BY_NAME[name]
    changed = replace(oracle, twin=merge(dict(oracle.twin), default))
    first = compare(changed, golden, train(changed, golden.initial, tmp_path, steps)).first
    assert first is not None
    assert first.startswith(found), first


def test_the_schedule_of_tpu_pretrains_recipe_is_the_originals_but_for_the_first_update_of_each_later_epoch() -> None:
    golden = read_golden("tpu_pretrain")
    schedule = Project(CHECKOUT).plan("roberta_base_v3-8_as_published").recipe.pretrain["main"].schedule
    rates = [1e-3 * learning_rate_scale(schedule, step, STEPS) for step in range(1, STEPS + 1)]
    apart = [
        n for n, (ours, theirs) in enumerate(zip(rates, golden.learning_rates, strict=True), 1) if ours != pytest.approx(theirs)
    ]
    assert apart == [26, 51, 76]
