"""Tiny runs of several processes, started by torchrun: many in one start, because a start takes seconds."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from safetensors.numpy import load_file

from relm.recipes.section import merge
from tiny_runs import TinyRun

# A batch for four processes with two micro-batches each, in float32, in which other orders of summation agree to rounding.
SHARED: dict[str, Any] = {
    "pretrain": {
        "main": {"global_batch_size": 16, "steps": 6, "precision": "float32", "schedule": {"warmup_steps": 2}},
    },
    "run": {"micro_batch_size": 2, "log_interval": 1},
}
# Each rank trains one run after the other, continues after an error, and ends with the last one's status, as the command would.
WORKER = """
import json, logging, os, signal, sys
from pathlib import Path
from relm.devices import processes
from relm.errors import RelmError
from relm.recipes.recipe import Recipe
from relm.training.input import Reader
from relm.training.interruption import Preempted
from relm.training.loop import pretrain

processes.BUCKET = 1000  # so that even these gradients make several buckets
rank, status, plain_batch = int(os.environ["RANK"]), 0, Reader.batch
logging.basicConfig(stream=sys.stdout, format=f"rank {rank} warns: %(message)s")

def torn(reader, step):
    if step == 4:
        raise RelmError("a shard is gone")
    return plain_batch(reader, step)

def terminated(reader, step):
    if step == 4:
        os.kill(os.getpid(), signal.SIGTERM)
    return plain_batch(reader, step)

for run in json.loads(Path(sys.argv[1]).read_text()):
    own = run["own"].get(str(rank), {})
    Reader.batch = {"torn": torn, "TERM": terminated}.get(own.pop("step 4", None), plain_batch)
    folder, examples = Path(own.pop("folder", run["folder"])), Path(run["examples"])
    os.environ.update(own)
    try:
        status, message = 0, pretrain(
            recipe=Recipe.model_validate(run["recipe"]),
            phase="main",
            manifest=examples / "manifest.json",
            tokenizer=examples / "tokenizer.json",
            init_from=None,
            model_folder=folder / "main" / "model",
            run_fingerprint=run["fingerprint"],
        )
    except RelmError as error:
        status, message = error.exit_code, str(error)
        if rank and isinstance(error, Preempted):
            status = 0
    for name in own:
        os.environ.pop(name)
    # One write: torchrun's ranks write unbuffered into one pipe, and print would write the end of the line separately.
    os.write(1, f"{run['name']}, rank {rank}: {message}\\n".encode())
sys.exit(status)
"""


@dataclass
class SharedRun(TinyRun):
    """A tiny run for one process or several."""

    own: dict[str, dict[str, str]] = field(default_factory=dict)
    """Rank -> variables of only its environment. `folder`: another run folder; `step 4`: the fault in preparing that step."""

    def __post_init__(self) -> None:
        self.changes = merge(SHARED, self.changes)

    def worker_input(self, processes: int) -> dict[str, Any]:
        """Return the run as a worker reads it."""
        recipe = self.recipe.model_dump(mode="json", exclude_unset=True)
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "examples": str(self.examples),
            "recipe": merge(recipe, {"run": {"processes": processes}}),
            "fingerprint": self.fingerprint,
            "own": self.own,
        }

    def train(self, until: int | None = None) -> str:
        """Train in this one process."""
        from relm.training.loop import pretrain

        return pretrain(
            recipe=self.recipe,
            phase="main",
            manifest=self.examples / "manifest.json",
            tokenizer=self.examples / "tokenizer.json",
            init_from=None,
            model_folder=self.model_folder,
            run_fingerprint=self.fingerprint,
            until=until,
        )

    def columns(self, *names: str) -> npt.NDArray[np.float64]:
        """Return figures of each line, nan where a line lacks one."""
        return np.array([[line.get(name, np.nan) for name in names] for line in self.lines()])

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        found: dict[str, npt.NDArray[np.float32]] = load_file(self.model_folder / "model.safetensors")
        return found


def start_ranks(runs: list[SharedRun], processes: int, before: str = "", **environment: str) -> "subprocess.Popen[str]":
    """Start torchrun on some runs.

    Args:
        before: code that each worker executes first.
    """
    folder = runs[0].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_text(json.dumps([run.worker_input(processes) for run in runs]))
    (folder / "worker.py").write_text(before + WORKER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*torchrun, str(folder / "worker.py"), str(folder / "runs.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(torchrun: "subprocess.Popen[str]", timeout: float = 200) -> "subprocess.CompletedProcess[str]":
    """Wait for the end; a hang is an error, and leaves nothing behind."""
    try:
        output, errors = torchrun.communicate(timeout=timeout)
    finally:
        if torchrun.poll() is None:
            for process in (*psutil.Process(torchrun.pid).children(recursive=True), torchrun):
                process.kill()
    return subprocess.CompletedProcess(torchrun.args, torchrun.returncode, output, errors)


def messages(done: "subprocess.CompletedProcess[str]", run: SharedRun) -> list[str]:
    """Return each rank's message on a run, in order of rank."""
    before = f"{run.folder.name}, rank "
    lines = [line.removeprefix(before) for line in done.stdout.splitlines() if line.startswith(before)]
    return [words for _, _, words in sorted(line.partition(": ") for line in lines)]
