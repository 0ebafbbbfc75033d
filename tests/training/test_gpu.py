"""Training on a real GPU: the steps of a CPU, the same bytes after kills, and every switch. All of it needs a GPU.

make test-gpu
"""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from relm.artifact import read_json
from relm.recipes.section import merge
from tiny_runs import TinyRun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.timeout(600),
]

WITHOUT_DROPOUT: dict[str, dict[str, Any]] = {
    "causal": {"dropout": 0.0},
    "masked": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    "seq2seq": {"dropout": 0.0},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw"},
    "adamw of transformers": {"name": "adamw", "form": "transformers"},
    "adam": {"name": "adam"},
    "lamb": {"name": "lamb"},
    "adafactor": {"name": "adafactor"},
    "sgd with momentum": {"name": "sgd", "sgd": {"momentum": 0.9}},
}
# Objective -> two kill points of its run, as for a CPU.
KILLS = {
    "causal": ("data:8", "checkpoint-renamed:1", "model-written:1"),
    "masked": ("gradient:4", "checkpoint-tensor:60"),
    "seq2seq": ("checkpoint-model.safetensors:2", "checkpoint-listed:1", "checkpoint-written:3"),
}
SHORT: dict[str, Any] = {"pretrain": {"main": {"steps": 12}}, "run": {"log_interval": 1}}
ON_GPU: dict[str, Any] = {"run": {"device": "cuda"}}
PLAIN: dict[str, Any] = {"run": {"device": "cuda", "compile": False}}


def losses(run: TinyRun) -> list[float]:
    """Return the losses of the run's steps, after training it in a separate process."""
    code, message = run.attempt(seconds=500)
    assert code == 0, message
    return [line["loss"] for line in run.lines() if "loss" in line]


def float32(objective: str) -> dict[str, Any]:
    """Return the changes of a run without dropout, in float32."""
    scaling = {"loss_scaling": {"name": "static", "scale": 1.0, "growth_interval": 2000}} if objective == "seq2seq" else {}
    return {"model": WITHOUT_DROPOUT[objective], "pretrain": {"main": {"precision": "float32", **scaling}}}


def test_the_run_says_which_gpu_it_used(tmp_path: Path, examples: Path) -> None:
    run = TinyRun(tmp_path / "run", examples, merge(SHORT, PLAIN))
    losses(run)
    state = read_json(run.folder / "main" / "checkpoints" / run.checkpoints[-1] / "state.json")
    assert (state["made_on"]["device"], state["made_on"]["name"]) == ("cuda", torch.cuda.get_device_name())
    log = [json.loads(line) for line in (run.folder / "main" / "train.jsonl").read_text().splitlines()]
    assert all(line["memory_bytes"] > 0 for line in log if "memory_bytes" in line)
    assert any("memory_bytes" in line for line in log)


@pytest.mark.parametrize("objective", WITHOUT_DROPOUT)
@pytest.mark.parametrize("on", [PLAIN, ON_GPU], ids=["plain", "compiled"])
def test_a_gpu_takes_the_steps_of_a_cpu(
    tmp_path: Path, examples_of: Callable[[str], Path], objective: str, on: dict[str, Any]
) -> None:
    changes = merge(SHORT, float32(objective))
    cpu = TinyRun(tmp_path / "cpu", examples_of(objective), changes, objective=objective)
    gpu = TinyRun(tmp_path / "gpu", cpu.examples, merge(changes, on), objective=objective)
    assert losses(gpu) == pytest.approx(losses(cpu), rel=2e-4)


@pytest.mark.parametrize("objective", WITHOUT_DROPOUT)
def test_half_precision_on_a_gpu_stays_near_the_steps_of_a_cpu(
    tmp_path: Path, examples_of: Callable[[str], Path], objective: str
) -> None:
    changes = merge(SHORT, {"model": WITHOUT_DROPOUT[objective]})
    if objective in ("causal", "seq2seq"):
        changes = merge(changes, {"pretrain": {"main": {"precision": "bfloat16"}}})
    cpu = TinyRun(tmp_path / "cpu", examples_of(objective), changes, objective=objective)
    gpu = TinyRun(tmp_path / "gpu", cpu.examples, merge(changes, ON_GPU), objective=objective)
    assert losses(gpu) == pytest.approx(losses(cpu), rel=0.02)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_the_updates_of_a_cpu(tmp_path: Path, examples: Path, name: str) -> None:
    changes = merge(SHORT, merge(float32("causal"), {"pretrain": {"main": {"optimizer": OPTIMIZERS[name]}}}))
    cpu = TinyRun(tmp_path / "cpu", examples, changes)
    gpu = TinyRun(tmp_path / "gpu", examples, merge(changes, PLAIN))
    assert losses(gpu) == pytest.approx(losses(cpu), rel=2e-4)


@pytest.mark.parametrize("objective", KILLS)
@pytest.mark.parametrize("on", [PLAIN, ON_GPU], ids=["plain", "compiled"])
def test_a_run_killed_twice_ends_with_the_same_bytes(
    tmp_path: Path, examples_of: Callable[[str], Path], objective: str, on: dict[str, Any]
) -> None:
    whole = TinyRun(tmp_path / "whole", examples_of(objective), merge(SHORT, on), objective=objective)
    losses(whole)
    run = dataclasses.replace(whole, folder=tmp_path / "killed")
    for kill in KILLS[objective]:
        code, message = run.attempt(kill, seconds=500)
        assert code == -signal.SIGKILL, f"{kill} was not reached: {message}"
    losses(run)
    assert run.lines() == whole.lines()
    assert run.listed() == whole.listed()
    assert run.last_optimizer() == whole.last_optimizer()
    assert run.sha256() == whole.sha256()


SWITCHES: dict[str, dict[str, Any]] = {
    "loss_chunk": {"run": {"loss_chunk": 5}},
    "activation_checkpointing": {"run": {"activation_checkpointing": True}},
    "tf32": {"run": {"float32_matmul_precision": "high"}},
    "other bits each time": {"run": {"deterministic": False}},
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("on", [PLAIN, ON_GPU], ids=["plain", "compiled"])
def test_a_switch_changes_only_rounding(tmp_path: Path, examples: Path, name: str, on: dict[str, Any]) -> None:
    changes = merge(SHORT, merge(float32("causal"), on))
    without = TinyRun(tmp_path / "without", examples, changes)
    switched = TinyRun(tmp_path / "switched", examples, merge(changes, SWITCHES[name]))
    assert losses(switched) == pytest.approx(losses(without), rel=1e-2 if name == "tf32" else 2e-4)


def test_training_told_to_stop_saves_and_resumes_with_the_same_bytes(tmp_path: Path, examples: Path) -> None:
    whole = TinyRun(tmp_path / "whole", examples, PLAIN)
    losses(whole)
    run = dataclasses.replace(whole, folder=tmp_path / "stopped")
    trainer = run.start()
    log = run.folder / "main" / "train.jsonl"
    while not log.exists() or not log.read_text():
        assert trainer.poll() is None, trainer.communicate()
    trainer.terminate()
    assert trainer.wait(60) in (0, 75), trainer.communicate()
    losses(run)
    assert run.sha256() == whole.sha256()


def test_checkpoints_written_during_training_are_those_written_before_the_next_step(tmp_path: Path, examples: Path) -> None:
    """The copies are in pinned memory, and the GPU changes the weights while a thread writes them."""
    large = {"model": {"hidden_size": 512, "heads": 8, "layers": 4}, "run": {"checkpoint_interval": 2}}
    whole = TinyRun(tmp_path / "whole", examples, merge(SHORT, merge(PLAIN, large)))
    losses(whole)
    once = TinyRun(tmp_path / "once", examples, merge(SHORT, merge(PLAIN, merge(large, {"run": {"checkpoint_interval": 12}}))))
    losses(once)
    assert whole.sha256() == once.sha256()
    assert whole.last_optimizer() == once.last_optimizer()
