"""A line of the log is read while the next step is computed, and has the same figures as one that is read at once.

The code for a GPU runs here on tensors of the CPU, with a stand-in for CUDA's pinned memory and events.
"""

import dataclasses
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relm.devices.torch import TorchDevice
from relm.errors import RelmError
from relm.training import updates
from relm.training.journal import LogLines
from tiny_runs import TinyRun

# Of `seconds` and rates nothing is exact.
TIMES = ("tokens_per_second", "samples_per_second", "seconds", "memory_bytes")
EACH_STEP = {"run": {"log_interval": 1, "checkpoint_interval": 10}, "pretrain": {"main": {"steps": 12}}}


def make_asynchronous(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the CPU take the code of a GPU; return a list that gets each step and each wait for figures."""
    events: list[str] = []

    class Event:
        """An event of CUDA; one with times counts milliseconds of the host."""

        def __init__(self, enable_timing: bool = False) -> None:
            self._timed, self._at = enable_timing, 0.0

        def record(self) -> None:
            self._at = 1000 * time.monotonic()
            if not self._timed:
                events.append("copy")

        def synchronize(self) -> None:
            if not self._timed:
                events.append("wait")

        def elapsed_time(self, later: "Event") -> float:
            return later._at - self._at

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **kind: empty(*shape, **kind))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    always = property(lambda device: True, lambda device, value: None)
    monkeypatch.setattr(TorchDevice, "asynchronous", always, raising=False)
    monkeypatch.setattr(updates, "kill_point", lambda name: events.append("step") if name == "gradient" else None)
    return events


def exact(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns that follow from the recipe."""
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


@pytest.fixture
def at_once(tiny_run: TinyRun, tmp_path: Path) -> TinyRun:
    """A finished run on a device that computes while the host waits."""
    run = dataclasses.replace(tiny_run, folder=tmp_path / "at once", changes=EACH_STEP)
    run.train()
    return run


def test_lines_are_read_a_step_later_and_have_the_same_figures(
    at_once: TinyRun, tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = make_asynchronous(monkeypatch)
    run = dataclasses.replace(tiny_run, changes=EACH_STEP)
    run.train()
    later, now = ["step", "wait", "copy"], ["step", "wait", "copy", "wait"]
    assert events == ["step", "copy", *8 * later, *now, "step", "copy", *now], "at checkpoints and at the end at once"
    assert exact(run.lines()) == exact(at_once.lines())
    weights = [each.model_folder / "model.safetensors" for each in (run, at_once)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_rates_are_those_of_the_device_wherever_the_host_reads_them(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    make_asynchronous(monkeypatch)
    monkeypatch.setattr(updates, "kill_point", lambda name: time.sleep(0.05) if name == "gradient" else None)
    run = dataclasses.replace(tiny_run, changes=EACH_STEP)
    run.train()
    rates = [json.loads(line)["samples_per_second"] for line in (run.folder / "main" / "train.jsonl").read_text().splitlines()]
    # Step 10, before a checkpoint, and the last one are read at once, those before them a step later.
    assert max(rates) < 8 / 0.04


def test_a_loss_that_is_not_finite_is_named_with_its_own_step(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**EACH_STEP, "pretrain": {"main": {"optimizer": {"learning_rate": 1e30, "gradient_clipping": None}}}}
    messages = []
    for name in ("at once", "later"):
        run = dataclasses.replace(tiny_run, folder=tiny_run.folder / name, changes=changes)
        with pytest.raises(RelmError) as caught:
            run.train()
        messages.append(str(caught.value).partition(";")[0])
        make_asynchronous(monkeypatch)
    assert messages[0] == messages[1]
    assert "expected a finite number" in messages[0]


@pytest.mark.parametrize(
    ("asynchronous", "traces", "scaler", "can_wait"),
    [
        (True, False, None, True),
        (True, False, "a scaler", True),
        (True, True, None, True),
        (True, True, "a scaler", False),
        (False, False, None, False),
    ],
)
def test_a_line_is_read_at_once_where_its_figures_cannot_wait(
    asynchronous: bool, traces: bool, scaler: str | None, can_wait: bool
) -> None:
    run: Any = SimpleNamespace(device=SimpleNamespace(asynchronous=asynchronous, traces=traces))
    learner: Any = SimpleNamespace(scaler=scaler)
    journal: Any = None
    assert LogLines(run, learner, journal, None, str).can_wait == can_wait
