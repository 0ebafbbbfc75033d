"""Hours, prices and memory of runs on machines, by arithmetic that one can check by hand."""

import dataclasses

import pytest

from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_figures import PhaseWork, hours_at_peak, price_of_hour
from relm.forecast.memory_verdict import MemoryVerdict, judge_memory
from relm.recipes.machine.machines import Machine, Peak, Price
from relm.recipes.project import Project
from relm.training.machine.peak import fill_in_peak, find_peak
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
PAGE = "https://example.org"
TPU = Machine(title="Four chips", device="tpu", topology="v3-8", memory_gib=16, peak=Peak(bfloat16=50, source=PAGE))
GPUS = Machine(title="Two", device="cuda", accelerators=2, memory_gib=24, peak=Peak(float32=10, bfloat16=80, source=PAGE))


def fit_of(name: str) -> MemoryVerdict:
    plan = PROJECT.plan(name)
    return judge_memory(plan, plan.phases[0], vocabulary(plan)[0])


def test_hours_are_those_of_all_devices_together() -> None:
    phase = PROJECT.plan("bert_large_wikitext103_v3-8_bf16").recipe.pretrain["main"]
    work = [PhaseWork(phase.model_copy(update={"steps": 3600}), step_operations=400 * 10**12)]
    assert hours_at_peak(work, TPU) == 1.0  # 400 * 10^12 operations a step, 8 devices of 50 * 10^12 in a second
    assert hours_at_peak(work, GPUS) == 2.5
    assert hours_at_peak(work, Machine(title="None", device="cpu")) is None


def test_a_tpu_multiplies_float32_in_passes_of_bfloat16() -> None:
    assert find_peak(TPU, "float32") == 50
    assert find_peak(TPU, "float32", "highest") == 50 / 6
    assert find_peak(TPU, "float32", "high") == 50 / 3
    assert find_peak(GPUS, "float32") == find_peak(GPUS, "float32", "highest") == 10
    assert find_peak(GPUS, "float16") is None


def test_a_price_is_of_each_chip_and_a_machines_own_price_is_of_all() -> None:
    assert price_of_hour(TPU, None) is None
    assert price_of_hour(TPU, 2.0) == 8.0  # four chips of two cores
    assert price_of_hour(GPUS, 2.0) == 4.0
    priced = GPUS.model_copy(update={"price": Price(usd_per_hour=3, date="2026-01-15", source=PAGE)})
    assert price_of_hour(priced, None) == 3.0
    assert price_of_hour(priced, 2.0) == 4.0


def test_a_compiled_run_fits_by_the_compilers_figure() -> None:
    fit = fit_of("roberta_base_v3-8@v5e-8")
    assert (fit.fits, fit.size) == (True, 192)
    assert fit.reason == "192 sequences at once, 24 on each device: 11.3 GB of 17.2 GB of each device, by the TPU's compiler"
    assert fit_of("roberta_base_v3-8").fits is True
    assert fit_of("roberta_base_v3-8@v3-8").reason == fit_of("roberta_base_v3-8").reason


def test_a_size_that_the_recipe_states_is_judged_and_not_replaced() -> None:
    plan = PROJECT.plan("bert_large_wikitext103_v3-8_fp32@l4")
    stated = plan.recipe.model_copy(update={"run": plan.recipe.run.model_copy(update={"micro_batch_size": 64})})
    fit = judge_memory(dataclasses.replace(plan, recipe=stated), "main", vocabulary(plan)[0])
    assert (fit.fits, fit.size) == (None, 64)


@pytest.mark.parametrize("name", ["quickstart", "shakespeare_char"])
def test_a_small_run_fits_on_a_cpu(name: str) -> None:
    assert fit_of(name).fits is True


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart@rtx4090", 82.6),
        ("bert_large_wikitext103_v3-8_bf16", 123),
        ("bert_large_wikitext103_v3-8_bf16@h100-8", 989.4),
        ("quickstart", None),
    ],
)
def test_training_compares_its_speed_with_the_peak_of_the_machine(name: str, expected: float | None) -> None:
    plan = PROJECT.plan(name)
    filled = fill_in_peak(plan, plan.phases[0])
    assert filled.recipe.run.peak_teraflops == expected
    assert filled.fingerprint == plan.fingerprint
    stated = plan.recipe.model_copy(update={"run": plan.recipe.run.model_copy(update={"peak_teraflops": 7.0})})
    assert fill_in_peak(dataclasses.replace(plan, recipe=stated), plan.phases[0]).recipe.run.peak_teraflops == 7
