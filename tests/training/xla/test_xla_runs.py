"""A step on eight XLA devices equals a CPU's step, and a run survives the same interruptions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xla_runs import SecondPhase, XlaRun, assert_same_bytes, assert_same_figures

from relm.artifact import read_json
from relm.recipes.section import merge

Runs = Callable[..., XlaRun]
HELD_OUT = {"run": {"validation_interval": 2, "validation_batches": 2}}
ACCUMULATION = {"pretrain": {"main": {"global_batch_size": 32, "steps": 4}}, "run": {"micro_batch_size": 8}}
FULL = pytest.mark.full


def phase(**settings: Any) -> dict[str, Any]:
    return {"pretrain": {"main": settings}}


@pytest.mark.parametrize("devices", [8, pytest.param(1, marks=FULL), pytest.param(2, marks=FULL)])
@pytest.mark.parametrize("objective", ["causal", pytest.param("masked", marks=FULL), "seq2seq"])  # AdamW, LAMB, Adafactor
def test_any_count_of_devices_takes_the_steps_of_a_cpu(objective: str, devices: int, runs: Runs) -> None:
    here = runs("cpu", objective, devices=0, changes=HELD_OUT).trained()
    there = runs(f"{devices} devices", objective, devices=devices, changes=HELD_OUT).trained()
    assert_same_figures(there, here)
    assert there.sha256() != here.sha256(), "nothing was computed elsewhere"


@pytest.mark.parametrize("objective", ["causal", pytest.param("masked", marks=FULL), pytest.param("seq2seq", marks=FULL)])
def test_accumulated_micro_batches_are_the_global_batch(objective: str, runs: Runs) -> None:
    changes = merge(ACCUMULATION, HELD_OUT)
    here = runs("cpu, accumulating", objective, devices=0, changes=changes).trained()
    there = runs("8 devices, accumulating", objective, changes=changes).trained()
    assert_same_figures(there, here)
    assert there.programs == 6, "initial state; first, middle and last micro-batch; first and later held-out batch"


@FULL
@pytest.mark.parametrize("optimizer", ["lamb", "adafactor", "adam", "sgd"])
def test_every_optimizer_takes_the_steps_of_a_cpu(optimizer: str, runs: Runs) -> None:
    changes = merge(phase(optimizer={"name": optimizer}), HELD_OUT)
    here = runs(f"cpu, {optimizer}", "causal", devices=0, changes=changes).trained()
    assert_same_figures(runs(f"8 devices, {optimizer}", "causal", changes=changes).trained(), here)


@FULL
@pytest.mark.parametrize("normalisation", ["per_replica", "per_micro_batch"])
def test_shares_of_the_loss_are_those_of_a_cpu(normalisation: str, runs: Runs) -> None:
    changes = merge(merge(ACCUMULATION, HELD_OUT), phase(loss_normalisation=normalisation, loss_shares=4))
    here = runs(f"cpu, {normalisation}", "masked", devices=0, changes=changes).trained()
    assert_same_figures(runs(f"8 devices, {normalisation}", "masked", changes=changes).trained(), here)


@FULL
def test_bfloat16_is_close_to_float32_and_not_the_same(runs: Runs) -> None:
    exact = runs("cpu", "masked", devices=0, changes=HELD_OUT).trained()
    coarse = runs("bfloat16", "masked", changes=merge(phase(precision="bfloat16"), HELD_OUT)).trained()
    np.testing.assert_allclose(coarse.columns("loss"), exact.columns("loss"), rtol=1e-3)
    assert np.abs(coarse.columns("loss") / exact.columns("loss") - 1).max() > 1e-6
    assert {weight.dtype for weight in coarse.weights().values()} == {np.dtype(np.float32)}


def whole(runs: Runs, objective: str) -> XlaRun:
    """Return an uninterrupted run with dropout."""
    return runs("whole", objective, dropout=True).trained()


@pytest.mark.parametrize("objective", ["causal", pytest.param("masked", marks=FULL), pytest.param("seq2seq", marks=FULL)])
def test_a_killed_run_ends_with_the_same_bytes(objective: str, runs: Runs) -> None:
    run = runs("killed", objective, dropout=True).trained("checkpoint-saved:1")
    assert run.checkpoints == ["step-00000003"]
    assert_same_bytes(run.trained(), whole(runs, objective))
    assert (whole(runs, objective).programs, run.programs) == (2, 1), "the initial state, unless it is read; and the step"
    records = read_json(run.folder / "main" / "device.json")["processes"]
    assert [(one["after_step"], one["steps"], one["compiles"]) for one in records] == [(0, 3, 2), (3, 3, 1)]
    if objective == "causal":
        without = runs("cpu", objective, devices=0, changes=HELD_OUT).trained()
        assert np.abs(run.columns("loss") / without.columns("loss") - 1).max() > 1e-4, "dropout is off"


def test_a_terminated_run_saves_and_resumes(runs: Runs) -> None:
    run = runs("terminated", "causal", dropout=True, changes=phase(steps=400))
    code, message = run.terminated(lines=2)
    assert code == 75
    assert "stopped by SIGTERM after step" in message
    step = int(message.split("after step ")[1].split(" ")[0])
    assert run.checkpoints[-1] == f"step-{step:08d}"
    again = XlaRun(run.folder, run.examples, {**run.changes, **phase(steps=400)}, dropout=True)
    code, message = again.terminated(lines=step + 2)
    assert code == 75
    assert [line["step"] for line in run.lines()] == list(range(1, len(run.lines()) + 1))


@pytest.mark.parametrize(("first", "second"), [(8, 0), (0, 8), pytest.param(8, 1, marks=FULL)])
@pytest.mark.parametrize("objective", ["causal", pytest.param("masked", marks=FULL), pytest.param("seq2seq", marks=FULL)])
def test_a_checkpoint_is_resumed_on_another_device(objective: str, first: int, second: int, runs: Runs) -> None:
    here = runs("cpu", objective, devices=0, changes=HELD_OUT).trained()
    name = f"from {first} to {second}"
    runs(name, objective, devices=first, changes=HELD_OUT).trained("checkpoint-saved:1")
    moved = runs(name, objective, devices=second, changes=HELD_OUT).trained()
    assert moved.made_on() == ["tpu" if devices else "cpu" for devices in (first, second)]
    assert_same_figures(moved, here)


def test_after_two_steps_nothing_is_compiled(runs: Runs) -> None:
    linear = {"name": "linear", "warmup_steps": 1, "floor": 0.0}  # whose last learning rate is 0

    def run(steps: int, checkpoint_interval: int, validation_interval: int) -> XlaRun:
        every = {"checkpoint_interval": checkpoint_interval, "validation_interval": validation_interval}
        changes = {**phase(steps=steps, schedule=linear), "run": {**every, "validation_batches": 2}}
        return runs(f"{steps} steps", "causal", changes=changes).trained()

    two, many = run(2, 1, 1), run(20, 4, 5)
    assert many.programs == two.programs == 4, "the initial state, the step, the first held-out batch, the later ones"
    records = [read_json(run.folder / "main" / "device.json") for run in (two, many)]
    assert [one["phase"] for one in records] == ["main", "main"]
    figures = [process for one in records for process in one["processes"]]
    assert [(one["after_step"], one["steps"], one["compiles"]) for one in figures] == [(0, 2, 4), (0, 20, 4)]
    steps_and_held_out = [2 + 2 * 2, 20 + 4 * 2]
    assert np.diff([one["executions"] for one in figures]) == np.diff(steps_and_held_out)
    assert all(0 < one["compile_seconds"] < 200 and 0 < one["execute_seconds"] < 200 for one in figures)
    assert figures[1]["transfers_to_devices"] > figures[0]["transfers_to_devices"] > 2
    assert figures[1]["bytes_to_devices"] > figures[0]["bytes_to_devices"] > 0


def second_phase(runs: Runs, devices: int, state: str, devices_before: int | None = None) -> SecondPhase:
    """Return a second phase with sequences of twice the length, after a first phase on the same or another count of devices."""
    devices_before = devices if devices_before is None else devices_before
    first = merge(phase(sequence_length=8), HELD_OUT)
    before = runs(f"first of two, {devices_before}", "causal", devices=devices_before, changes=first).trained()
    second = {**before.recipe.pretrain["main"].model_dump(), "sequence_length": 16, "optimizer_state": state}
    changes = merge(first, {"pretrain": {"second": second}})
    run = SecondPhase(before.folder / f"{state}, {devices}", before.examples, changes, devices=devices, before=before)
    run.trained()
    return run


@pytest.mark.parametrize(("state", "programs"), [("kept", 3), ("fresh", 4)])
def test_a_second_phase_trains_as_on_a_cpu_and_compiles_once(state: str, programs: int, runs: Runs) -> None:
    here, there = second_phase(runs, 0, state), second_phase(runs, 8, state)
    assert_same_figures(there, here)
    assert there.before is not None
    assert there.before.programs == 4, "the initial state, the step, the first held-out batch, the later ones"
    assert there.programs == programs
    if state == "fresh":
        kept = second_phase(runs, 8, "kept")
        assert np.abs(kept.columns("loss") / there.columns("loss") - 1).max() > 1e-4, "the optimizer was kept"


def test_a_single_device_takes_the_steps_of_eight(runs: Runs) -> None:
    eight = runs("8 devices", "causal", devices=8, changes=HELD_OUT).trained()
    alone = runs("one of 8 devices", "causal", devices=8, one_tpu=True, changes=HELD_OUT).trained()
    assert_same_figures(alone, eight)
    assert [run.listed().count('"devices": 1') for run in (alone, eight)] == [len(alone.checkpoints), 0]
    (figures,) = read_json(alone.folder / "main" / "device.json")["processes"]
    assert alone.programs == figures["compiles"] == 4, "the initial state, the step, first and later held-out batch"
    assert figures["executions"] == 1 + alone.recipe.pretrain["main"].steps + 2 * 4


def test_a_slice_of_one_core_takes_a_batch_that_eight_cannot_share(runs: Runs) -> None:
    six = {"pretrain": {"main": {"global_batch_size": 6}}}
    here = runs("six sequences on a CPU", "causal", devices=0, changes=six).trained()
    core = runs("six sequences on a core", "causal", devices=8, changes={**six, "run": {"topology": "v3-1"}}).trained()
    assert_same_figures(core, here)
    assert core.listed().count('"devices": 1') == len(core.checkpoints)


SCALINGS = {
    "by_step": {"name": "by_step", "scale": 1024.0, "by_step": {2: 2.0**14, 4: 0.5, 5: 1.0}},
    "automatic": {"name": "automatic", "scale": 2.0**127, "growth_interval": 2},
}


@pytest.mark.parametrize(("scaling", "programs"), [("by_step", 4), pytest.param("automatic", 5, marks=FULL)])
def test_a_scaled_loss_makes_the_updates_of_a_cpu(scaling: str, programs: int, runs: Runs) -> None:
    changes = merge(phase(loss_scaling=SCALINGS[scaling]), HELD_OUT)
    here = runs(f"cpu, {scaling}", "causal", devices=0, changes=changes).trained()
    there = runs(f"8 devices, {scaling}", "causal", changes=changes).trained()
    assert_same_figures(there, here)
    assert len(set(here.columns("loss_scale").ravel())) > 2
    figures = ("loss_scale", "skipped_updates")
    np.testing.assert_array_equal(there.columns(*figures), here.columns(*figures))
    assert (here.columns("skipped_updates").max() > 0) == (scaling == "automatic")
    assert there.programs == programs, (
        "the initial state, the step (automatic: first and later), first and later held-out batch"
    )


@pytest.mark.parametrize("first", [0, pytest.param(8, marks=FULL)])
def test_an_optimizer_is_kept_between_phases_on_different_devices(first: int, runs: Runs) -> None:
    elsewhere = second_phase(runs, 8 - first, "kept", first)
    assert_same_figures(elsewhere, second_phase(runs, 0, "kept"))
