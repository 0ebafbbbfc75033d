"""The checkpoint interval of least cost, by arithmetic that one can check by hand."""

import pytest

from relm.forecast.checkpoint_interval import Saving, best_interval, interval_lines, lost_share
from relm.forecast.machine_figures import PhaseWork
from relm.recipes.machine.machines import Machine, Peak
from relm.recipes.project import Project
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
PEAK = Peak(bfloat16=50, source="https://example.org")


def saving() -> Saving:
    phase = PROJECT.plan("bert_large_wikitext103_v3-8_bf16").recipe.pretrain["main"]
    # On 8 devices at 40 % of 50 * 10^12 a second: a step of one second, and a checkpoint of two.
    return Saving("main", PhaseWork(phase.model_copy(update={"steps": 9000}), step_operations=160 * 10**12), 2 * 10**9)


def test_no_other_interval_loses_less() -> None:
    best = best_interval(write=7, between=5000)
    at_best = lost_share(best, write=7, between=5000)
    assert all(lost_share(best * factor, write=7, between=5000) > at_best for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


def test_a_table_compares_the_recipes_interval_with_the_best() -> None:
    run = PROJECT.plan("bert_large_wikitext103_v3-8_bf16").recipe.run.model_copy(update={"checkpoint_interval": 100})
    machine = Machine(title="Four chips", device="tpu", topology="v3-8", memory_gib=16, peak=PEAK)
    *_, row = interval_lines([saving()], run, machine)
    # sqrt(2 * 2 s * 86,400 s) = 588 s; 2/100 + 100/172,800 and 2/588 + 588/172,800 of the time are lost.
    assert row.split() == ["main", "24", "h", "100", "2.06%", "588", "0.68%"]


def test_gpus_have_a_row_for_their_failures_and_hosts_are_lost_more_often() -> None:
    run = PROJECT.plan("bert_large_wikitext103_v3-8_bf16").recipe.run
    machine = Machine(title="Two hosts", device="cuda", accelerators=16, hosts=2, memory_gib=80, peak=PEAK)
    preempted, failed = list(interval_lines([saving()], run, machine))[-2:]
    assert preempted.split()[1:3] == ["12", "h"]
    assert failed.split()[1:3] == ["3,167", "h"]  # 54 * 24 * 16,384 / 419 / 16


@pytest.mark.parametrize("machine", [None, Machine(title="CPU", device="cpu")])
def test_without_a_peak_nothing_is_said(machine: Machine | None) -> None:
    assert list(interval_lines([saving()], PROJECT.plan("quickstart").recipe.run, machine)) == []
