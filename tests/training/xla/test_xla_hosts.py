"""Agreement between hosts: two processes on the CPU client, which cannot sum over processes, so each computes everything."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_runs import SharedRun, finished, messages, start_ranks
from xla_runs import XlaRun, assert_same_figures

from relm.errors import RelmError
from relm.recipes.section import merge
from relm.training.input import require_same_batch
from small_pci import pci_bus

Runs = Callable[..., XlaRun]
ON_TPU = {"run": {"device": "tpu", "micro_batch_size": None, "checkpoint_interval": 3}}


class HostsRun(SharedRun):
    """A tiny run with a process for each host."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.changes = merge(self.changes, ON_TPU)

    def worker_input(self, processes: int) -> dict[str, Any]:
        """Return the run as a worker reads it, with `run.processes` left at 1."""
        return super().worker_input(1)


def test_hosts_take_the_same_steps_stop_together_and_begin_together(tmp_path: Path, examples: Path) -> None:
    whole, stopped = (HostsRun(tmp_path / name, examples) for name in ("whole", "stopped"))
    stopped.own = {"1": {"step 4": "TERM"}}  # the host of rank 1 alone is preempted
    own = {"1": {"folder": str(tmp_path / "on another disk")}}
    apart = dataclasses.replace(stopped, own=own)
    on = dataclasses.replace(stopped, own={})
    all_runs = [whole, stopped, apart, on]
    done = finished(start_ranks(all_runs, 2, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4"), timeout=280)
    words = {name: messages(done, run) for name, run in (("whole", whole), ("stopped", stopped))}
    assert all(one.startswith("trained phase main: 6 steps") for one in words["whole"]), done.stderr
    begun, refused, ended = (words["stopped"][number::3] for number in range(3))
    assert sorted(one.partition(" after step ")[0] for one in begun) == ["stopped by SIGTERM", "stopped by another process"]
    assert begun[0].partition(" after step ")[2][0] == begun[1].partition(" after step ")[2][0]
    step = int(begun[0].partition(" after step ")[2][0])
    at = f"the processes are at different steps: rank 0 at {step + 1}, rank 1 at 1. All of them must find the same checkpoints"
    assert all(one.startswith(at) for one in refused)
    assert all(one.startswith("trained phase main: 6 steps") for one in ended)
    assert not (tmp_path / "on another disk" / "main" / "train.jsonl").exists(), "rank 1 wrote"
    assert stopped.sha256() == whole.sha256()
    assert [line["step"] for line in stopped.lines()] == [1, 2, 3, 4, 5, 6]
    assert "each computes every step in full" in done.stdout


def test_examples_that_differ_between_hosts_are_refused() -> None:
    require_same_batch(3, np.array([[5, 7], [5, 7], [5, 7]]))
    with pytest.raises(RelmError, match=r"step 3: rank 1, 2 read other examples than rank 0\. Give every machine the same"):
        require_same_batch(3, np.array([[5, 7], [5, 6], [4, 8]]))


@pytest.mark.full
def test_hosts_of_a_tpu_keep_programs_in_separate_folders(tmp_path: Path, examples: Path) -> None:
    pci = pci_bus(tmp_path / "pci", "v3", "v3")
    before = f"""
import os, sys
from pathlib import Path
sys.path.append({str(Path(__file__).parent)!r})
from as_tpu import behave_as_tpu
os.environ["LOCAL_WORLD_SIZE"] = "1"  # a machine for each
behave_as_tpu(Path({str(pci)!r}), hosts=2)
"""
    run = HostsRun(tmp_path / "run", examples)
    done = finished(start_ranks([run], 2, before, CPU_NUM_DEVICES="4"), timeout=280)
    assert all(one.startswith("trained phase main: 6 steps") for one in messages(done, run)), done.stderr
    made_on = json.loads(run.listed().splitlines()[-1])["made_on"]
    assert (made_on["name"], made_on["hosts"], made_on["devices"], made_on["chips"]) == ("TPU v3", 2, 4, 2)
    (kept,) = (run.folder / "main" / "compiled").iterdir()
    assert sorted(host.name for host in kept.iterdir()) == ["host-0", "host-1"]
    assert all(any(host.iterdir()) for host in kept.iterdir())


@pytest.mark.full
def test_the_devices_of_four_hosts_take_the_steps_of_a_cpu(runs: Runs) -> None:
    wide = {
        "pretrain": {"main": {"global_batch_size": 32, "steps": 4}},
        "run": {"validation_interval": 2, "validation_batches": 2},
    }
    here = runs("cpu, wide", "causal", devices=0, changes=wide).trained()
    assert_same_figures(runs("32 devices", "causal", devices=32, changes=wide).trained(), here)
