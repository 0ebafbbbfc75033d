"""Runs through the worker of IPUs: the same results as a CPU's, however they are interrupted, and the loop counts updates."""

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from relm.devices.ipu.backend import UpdateCall, UpdateSums
from relm.devices.ipu.device import IpuDevice
from relm.errors import RelmError
from relm.recipes.section import merge
from relm.training import updates
from relm.training.interruption import Preempted
from tiny_runs import TinyRun

STEPS = 8
# Two IPUs, two replicas of six micro-batches, two updates a call; without the rounding of half precision.
PIPELINE = {"layers_per_ipu": [1, 1], "replicas": 2, "gradient_accumulation": 6, "device_iterations": 2}
PIPELINE |= {"stochastic_rounding": False, "precision": "float32"}
SCHEDULE = {"name": "cosine", "warmup_steps": 1, "floor": 0.1, "updates_per_step": 2}
CHANGES: dict[str, Any] = {
    "model": {"dropout": 0.0},
    "pretrain": {
        "main": {"steps": STEPS, "global_batch_size": 12, "optimizer": {"gradient_clipping": None}, "schedule": SCHEDULE}
    },
    "run": {"micro_batch_size": 1, "log_interval": 1, "checkpoint_interval": 2, "keep_checkpoints": 9},
}
ON_IPUS = {"run": {"device": "ipu_simulator", "pipeline": PIPELINE}}

forked = pytest.mark.usefixtures("forked_workers")


def run_in(folder: Path, examples: Path, *changes: dict[str, Any], objective: str = "causal") -> TinyRun:
    whole: dict[str, Any] = CHANGES
    for change in changes:
        whole = merge(whole, change)
    return TinyRun(folder, examples, whole, objective=objective)


def weights(run: TinyRun) -> dict[str, torch.Tensor]:
    return load_file(run.model_folder / "model.safetensors")


def assert_close(found: TinyRun, expected: TinyRun, tolerance: float = 1e-5) -> None:
    others = weights(expected)
    for name, weight in weights(found).items():
        torch.testing.assert_close(weight, others[name], rtol=0, atol=tolerance)


def assert_same(run: TinyRun, whole: TinyRun) -> None:
    assert run.lines() == whole.lines()
    assert run.listed() == whole.listed()
    assert run.last_optimizer() == whole.last_optimizer()
    assert run.sha256() == whole.sha256()


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> TinyRun:
    run = run_in(tmp_path_factory.mktemp("ipu") / "on_cpu", examples)
    run.train()
    return run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> TinyRun:
    """The uninterrupted run, with dropout and random rounding, with which interrupted ones are compared."""
    rounded = {"run": {"pipeline": {"precision": "float16", "stochastic_rounding": True}}}
    run = run_in(tmp_path_factory.mktemp("ipu") / "whole", examples, ON_IPUS, rounded, {"model": {"dropout": 0.1}})
    run.train()
    return run


@pytest.fixture
def interrupted(whole: TinyRun, tmp_path: Path) -> TinyRun:
    """A run like `whole`, not yet begun."""
    return dataclasses.replace(whole, folder=tmp_path / "run")


def test_a_pipeline_trains_the_weights_that_a_cpu_trains(on_cpu: TinyRun, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", on_cpu.examples, ON_IPUS)
    sentence = run.train()
    assert "8 steps, 1,536 tokens" in sentence
    assert_close(run, on_cpu)
    before = load_file(run.folder / "main" / "checkpoints" / "step-00000002" / "model.safetensors")
    assert max((weights(run)[name] - before[name]).abs().max() for name in before) > 0.01, "nothing was trained"
    assert [child for child in psutil.Process().children() if "relm.devices.ipu.worker" in " ".join(child.cmdline())] == []


@forked
def test_the_log_counts_updates_and_has_a_line_for_each_call(on_cpu: TinyRun, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", on_cpu.examples, ON_IPUS, {"run": {"log_interval": 3}})
    run.train()
    expected = {line["step"]: line for line in on_cpu.lines()}
    assert [line["step"] for line in run.lines()] == [2, 4, 6, 8]
    for line in run.lines():
        there = expected[line["step"]]
        assert "gradient_norm" not in line
        for figure in ("epoch", "learning_rate"):
            assert line[figure] == there[figure]
        for figure in ("loss", "next_token_loss", "next_token_accuracy"):
            assert line[figure] == pytest.approx(there[figure], rel=1e-5)
    assert run.checkpoints == [f"step-{step:08d}" for step in (2, 4, 6, 8)]


@forked
def test_the_length_of_a_call_changes_nothing_with_a_constant_learning_rate(examples: Path, tmp_path: Path) -> None:
    constant = {"pretrain": {"main": {"schedule": {"name": "constant", "floor": 0.0, "updates_per_step": 4}}}}
    runs = []
    for length in (1, 4):
        calls = {"run": {"checkpoint_interval": 4, "pipeline": {"device_iterations": length}}}
        run = run_in(tmp_path / str(length), examples, ON_IPUS, constant, calls, {"model": {"dropout": 0.1}})
        run.train()
        runs.append(run)
    assert [len(run.lines()) for run in runs] == [8, 2]
    assert runs[0].sha256() == runs[1].sha256()
    assert runs[0].lines()[3::4] == runs[1].lines()


@forked
@pytest.mark.parametrize("objective", ["causal", "masked"])
@pytest.mark.parametrize(("first", "second"), [({}, ON_IPUS), (ON_IPUS, {})], ids=["from a cpu", "to a cpu"])
def test_a_run_moves_between_a_cpu_and_ipus(
    first: dict[str, Any],
    second: dict[str, Any],
    objective: str,
    examples_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AdamW's state has another form on each, LAMB's the same."""
    float32 = {"pretrain": {"main": {"precision": "float32"}}}
    without_dropout = {"causal": {"dropout": 0.0}, "masked": {"hidden_dropout": 0.0, "attention_dropout": 0.0}}

    def run_of(folder: str, *more: dict[str, Any]) -> TinyRun:
        run = run_in(tmp_path / folder, examples_of(objective), float32, *more, objective=objective)
        run.changes["model"] = without_dropout[objective]
        return run

    there = run_of("there")
    there.train()
    moved = run_of("moved", first)
    stopped_after(moved, 4, monkeypatch)
    moved.changes = run_of("moved", second).changes
    moved.train()
    assert "resuming, but the last bits will differ" in caplog.text
    assert_close(moved, there, tolerance=3e-5)


def stopped_after(run: TinyRun, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train some steps and leave the run as an interruption does, after it saved a checkpoint."""
    counts = {"gradient": 1, "updates": PIPELINE["device_iterations"]}
    taken = 0

    def raise_in_the_next_step(name: str) -> None:
        nonlocal taken
        taken += counts.get(name, 0)
        if taken > steps:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(updates, "kill_point", raise_in_the_next_step)
        with pytest.raises(InterruptedError):
            run.train()


@pytest.mark.parametrize(
    "kill",
    [
        "updates:3",
        "checkpoint-listed:2",
        *(pytest.param(kill, marks=pytest.mark.full) for kill in ("updates:1", "checkpoint-tensor:40", "model-written:1")),
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(kill: str, interrupted: TinyRun, whole: TinyRun) -> None:
    code, message = interrupted.attempt(kill)
    assert code == -signal.SIGKILL, message
    code, message = interrupted.attempt()
    assert code == 0, message
    assert_same(interrupted, whole)


@forked
@pytest.mark.parametrize("call", [pytest.param(1, marks=pytest.mark.full), 3])
def test_a_killed_worker_loses_nothing(
    call: int, interrupted: TinyRun, whole: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    take = IpuDevice.take_updates

    def take_or_be_killed(device: IpuDevice, given: UpdateCall) -> UpdateSums:
        nonlocal taken
        taken += 1
        if taken == call:
            os.kill(device.worker.pid, signal.SIGKILL)
        return take(device, given)

    monkeypatch.setattr(IpuDevice, "take_updates", take_or_be_killed)
    with pytest.raises(RelmError, match=r"was ended by SIGKILL; .* the same command resumes the run"):
        interrupted.train()
    interrupted.train()
    assert_same(interrupted, whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_call_is_finished_after_a_signal(
    number: signal.Signals, interrupted: TinyRun, whole: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = []

    def signal_in_the_second_call(name: str) -> None:
        passed.append(name)
        if passed.count("updates") == 2:
            for worker in psutil.Process().children():
                if "relm.devices.ipu.worker" in " ".join(worker.cmdline()):
                    worker.send_signal(number)  # as a terminal does to its whole group
            signal.raise_signal(number)

    monkeypatch.setattr(updates, "kill_point", signal_in_the_second_call)
    with pytest.raises(Preempted, match=f"stopped by {number.name} after step 4 of 8"):
        interrupted.train()
    monkeypatch.undo()
    assert interrupted.checkpoints == ["step-00000002", "step-00000004"]
    interrupted.train()
    assert_same(interrupted, whole)


@forked
def test_validation_is_computed_with_the_weights_after_the_call(on_cpu: TinyRun, tmp_path: Path) -> None:
    validates = {"run": {"validation_interval": 4, "validation_batches": 2, "checkpoint_interval": 8}}
    here = run_in(tmp_path / "cpu", on_cpu.examples, validates)
    there = run_in(tmp_path / "ipu", on_cpu.examples, ON_IPUS, validates)
    for run in (here, there):
        run.train()
    found = [line["validation_loss"] for line in there.lines() if "validation_loss" in line]
    expected = [line["validation_loss"] for line in here.lines() if "validation_loss" in line]
    assert found == pytest.approx(expected, rel=1e-5)
    assert len(found) == 2
    assert found[0] != found[1]


@forked
def test_a_checkpoint_in_the_middle_of_a_call_is_refused(
    on_cpu: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path / "run", on_cpu.examples, {"run": {"checkpoint_interval": 3}})
    stopped_after(run, 3, monkeypatch)
    run.changes = run_in(tmp_path, on_cpu.examples, ON_IPUS).changes
    with pytest.raises(RelmError, match=r"device_iterations: 2 updates a call do not divide the 5 steps from 3 to 8"):
        run.train()


@forked
def test_a_checkpoint_of_another_plan_resumes(
    on_cpu: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_in(tmp_path / "run", on_cpu.examples, ON_IPUS)
    stopped_after(run, 4, monkeypatch)
    other = {"layers_per_ipu": [2], "replicas": 1, "gradient_accumulation": 12}
    run.changes = merge(run.changes, {"run": {"pipeline": other}})
    run.train()
    assert "replicas was 2, is 1; resuming, but the last bits will differ" in caplog.text
    assert_close(run, on_cpu)


@forked
def test_a_loss_that_is_not_finite_stops_with_its_step_and_no_advice_to_clip(on_cpu: TinyRun, tmp_path: Path) -> None:
    diverging = {"pretrain": {"main": {"optimizer": {"learning_rate": 1e37}, "schedule": {"warmup_steps": 0}}}}
    run = run_in(tmp_path / "run", on_cpu.examples, ON_IPUS, diverging)
    message = r"step 2: the loss is (nan|inf), expected a finite number; it read examples .*: lower optimizer.learning_rate, "
    with pytest.raises(RelmError, match=f"{message}or warm up longer$"):
        run.train()


@forked
def test_an_overflow_in_the_last_update_is_found_before_anything_is_written(on_cpu: TinyRun, tmp_path: Path) -> None:
    """The device has no norm of the gradient, and no loss follows."""
    one = {"pretrain": {"main": {"steps": 1, "schedule": {"name": "constant", "floor": 0.0, "warmup_steps": 0}}}}
    overflow = {"run": {"pipeline": {"device_iterations": 1, "loss_scaling": {"scale": 3e38}}}}
    run = run_in(tmp_path / "run", on_cpu.examples, ON_IPUS, one, overflow)
    message = r"step 1: the weight \S+ has (nan|-?inf), expected finite numbers; it read examples .*: "
    with pytest.raises(RelmError, match=message + r"lower run.pipeline.loss_scaling \(3e\+38\) or optimizer.learning_rate, or"):
        run.train()
    assert not (run.folder / "main" / "checkpoints").exists()
    assert not run.model_folder.exists()


@forked
def test_instances_sum_counts_and_take_updates_in_one_order(
    whole: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are sums over all instances by the worker: two instances that did them in another order would wait for ever."""
    events = []
    opened, take = IpuDevice.__init__, IpuDevice.take_updates

    def open_as_one_of_two(device: IpuDevice, *arguments: Any) -> None:
        opened(device, *arguments)
        device.ranks = 2

    def sum_counts(device: IpuDevice, rows: np.ndarray) -> np.ndarray:
        events.append("counts")
        return np.stack([rows[0], rows[0]])

    def take_updates(device: IpuDevice, call: UpdateCall) -> UpdateSums:
        events.append("updates")
        return take(device, call)

    monkeypatch.setattr(IpuDevice, "__init__", open_as_one_of_two)
    monkeypatch.setattr(IpuDevice, "sum_counts", sum_counts)
    monkeypatch.setattr(IpuDevice, "take_updates", take_updates)
    run = dataclasses.replace(whole, folder=tmp_path / "run")
    run.train()
    assert events == [*["counts", "counts", "updates"] * 4, "counts"]
    assert run.sha256() == whole.sha256()
