"""A machine that cannot divide a batch is refused when the run is planned; a run elsewhere names its arithmetic."""

import pytest

from relm.errors import RelmError
from relm.recipes.machine.machines import Machine, describe_deviation, divides
from relm.recipes.phase import Phase
from relm.recipes.project import Project
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
EIGHT = Machine(title="eight", device="cuda", accelerators=8)
SLICE = Machine(title="slice", device="tpu", topology="v3-8")


def phase(size: int, shares: int = 1) -> Phase:
    normalisation = "global_tokens" if shares == 1 else "per_replica"
    settings = {"sequence_length": 8, "steps": 1, "optimizer": {"learning_rate": 0.1}, "loss_normalisation": normalisation}
    return Phase.model_validate({"objective": "causal", "global_batch_size": size, "loss_shares": shares, **settings})


def test_processes_divide_the_batch_and_the_devices_of_one_divide_each_share_too() -> None:
    assert divides(EIGHT, phase(8))
    assert not divides(EIGHT, phase(12))
    assert divides(SLICE, phase(16, shares=2))
    assert not divides(SLICE, phase(24, shares=2))
    assert divides(EIGHT, phase(24, shares=2))


def test_a_batch_that_cannot_be_divided_names_the_machines_that_can() -> None:
    with pytest.raises(RelmError) as caught:
        PROJECT.plan("shakespeare_char@v3-8")
    words = str(caught.value)
    assert "recipes/shakespeare_char.yaml: pretrain.main.global_batch_size: 12 sequences cannot be divided evenly" in words
    assert "among the 8 devices of v3-8. Choose a machine that can divide them: a100, cpu, h100, l4, rtx4090, " in words
    assert "v4-8" in words.split(": ")[-1]
    assert "v5e-8" not in words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quickstart@h100", "own machine is cpu: matrix products of float32 are multiplied in float32, without TF32."),
        ("roberta_base_v3-8@v4-8", "own machine is v3-8: matrix products of float32 are multiplied in bfloat16 and added in"),
        ("roberta_base_v3-8@cpu", "own machine is v3-8: matrix products of float32 are multiplied in float32."),
        ("shakespeare_char_gpu@l4", "own machine is a100: matrix products are computed in bfloat16, as the recipe's precision"),
    ],
)
def test_a_run_elsewhere_has_a_deviation_more(name: str, words: str) -> None:
    own, other = PROJECT.plan(name.partition("@")[0]).recipe, PROJECT.plan(name).recipe
    assert other.deviations[:-1] == own.deviations
    assert words in other.deviations[-1]


def test_a_run_on_the_own_machine_has_none_more() -> None:
    plain = PROJECT.plan("roberta_base_v3-8").recipe.deviations
    assert PROJECT.plan("roberta_base_v3-8@v3-8").recipe.deviations == plain


def test_the_deviation_names_the_precision_that_the_recipe_states() -> None:
    placed, machine = PROJECT.plan("roberta_base_v3-8@v4-8").recipe, PROJECT.machine("v4-8", "")
    run = placed.run.model_copy(update={"float32_matmul_precision": "highest"})
    words = describe_deviation(placed.model_copy(update={"run": run}), "v3-8", "v4-8", machine)
    assert "multiplied in six passes of bfloat16 and added in float32." in words
