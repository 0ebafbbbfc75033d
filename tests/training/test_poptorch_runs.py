"""Runs through PopTorch, of which a stand-in computes on the CPU: the loop, the device and the worker are the real ones."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from relm.devices.ipu.worker_process import INTERPRETER
from relm.errors import RelmError
from relm.recipes.section import merge
from relm.training import updates
from tiny_runs import TinyRun

STAND_IN = Path(__file__).parents[1] / "devices" / "ipu"
# Two IPUs, two replicas of six micro-batches, two updates a call.
PIPELINE = {"layers_per_ipu": [1, 1], "replicas": 2, "gradient_accumulation": 6, "device_iterations": 2}
CHANGES: dict[str, Any] = {
    "model": {"dropout": 0.0},
    "pretrain": {
        "main": {
            "steps": 8,
            "global_batch_size": 12,
            "optimizer": {"gradient_clipping": None, "epsilon": 1e-6},
            "schedule": {"name": "cosine", "warmup_steps": 1, "floor": 0.1, "updates_per_step": 2},
        }
    },
    "run": {"micro_batch_size": 1, "log_interval": 2, "checkpoint_interval": 4, "device": "ipu", "pipeline": PIPELINE},
}


@pytest.fixture(autouse=True)
def poptorch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the worker the stand-in."""
    (tmp_path / "poptorch.py").write_text(
        "import sys, torch, poptorch_stand_in\ntorch.__version__ = '2.0.1'\nsys.modules['poptorch'] = poptorch_stand_in\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(STAND_IN)]))
    monkeypatch.setenv(INTERPRETER, sys.executable)


def run_in(folder: Path, examples: Path, *changes: dict[str, Any]) -> TinyRun:
    whole: dict[str, Any] = CHANGES
    for change in changes:
        whole = merge(whole, change)
    return TinyRun(folder, examples, whole, objective="causal")


def test_a_run_in_half_precision_that_was_interrupted_ends_with_the_same_bytes(
    tmp_path: Path, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = {"run": {"pipeline": {"loss_scaling": {"scale": 1024}}}}
    whole = run_in(tmp_path / "whole", examples, scaled)
    whole.train()
    stopped = run_in(tmp_path / "stopped", examples, scaled)
    calls = []

    def interrupt(name: str) -> None:
        calls.extend([name] if name == "updates" else [])
        if len(calls) > 3:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(updates, "kill_point", interrupt)
        with pytest.raises(InterruptedError):
            stopped.train()
    stopped.train()
    assert stopped.sha256() == whole.sha256()
    assert stopped.last_optimizer() == whole.last_optimizer()


def test_instances_without_poprun_are_refused(tmp_path: Path, examples: Path) -> None:
    with pytest.raises(RelmError, match="PopRun did not start this process"):
        run_in(tmp_path / "run", examples, {"run": {"pipeline": {"instances": 2}}}).train()
