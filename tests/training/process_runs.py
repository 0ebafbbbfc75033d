"""Tiny runs of several processes, really started by torchrun: many in one start, because a start takes seconds."""

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

# A batch for four processes with two micro-batches each, in the precision in which equal sums are equal.
SHARED: dict[str, Any] = {
    "pretrain": {
        "main": {"global_batch_size": 16, "steps": 6, "precision": "float32", "schedule": {"warmup_steps": 2}},
    },
    "run": {"micro_batch_size": 2, "log_interval": 1},
}
# Each rank trains one run after the other, goes on after an error, and ends with the last one's status, as the command would.
WORKER = """
import json, logging, os, signal, sys
from pathlib import Path
from relm.devices import processes
from relm.errors import RelmError
from relm.recipes.recipe import Recipe
from relm.training.input import Reader
from relm.training.interruption import Preempted
from relm.training.loop import pretrain

processes.BUCKET = 1000  # so that even these gradients travel in several pieces
rank, status, plain_batch = int(os.environ["RANK"]), 0, Reader.batch
logging.basicConfig(stream=sys.stdout, format=f"rank {rank} warns: %(message)s")

def torn(reader, step):
    if step == 4:
        raise RelmError("a shard is gone")
    return plain_batch(reader, step)

def told_to_stop(reader, step):
    if step == 4:
        os.kill(os.getpid(), signal.SIGTERM)
    return plain_batch(reader, step)

for run in json.loads(Path(sys.argv[1]).read_text()):
    own = run["own"].get(str(rank), {})
    Reader.batch = {"torn": torn, "TERM": told_to_stop}.get(own.pop("step 4", None), plain_batch)
    folder, examples = Path(own.pop("folder", run["folder"])), Path(run["examples"])
    os.environ.update(own)
    places = examples / "manifest.json", examples / "tokenizer.json", None, folder / "main" / "model"
    try:
        status, said = 0, pretrain(Recipe.model_validate(run["recipe"]), "main", *places, run["fingerprint"])
    except RelmError as error:
        status, said = error.exit_code, str(error)
        if rank and isinstance(error, Preempted):
            status = 0
    for name in own:
        os.environ.pop(name)
    # At once: torchrun's ranks write unbuffered into one pipe, and print would send the end of the line by itself.
    os.write(1, f"{run['name']}, rank {rank}: {said}\\n".encode())
sys.exit(status)
"""


@dataclass
class SharedRun(TinyRun):
    """A tiny run for one process or several."""

    own: dict[str, dict[str, str]] = field(default_factory=dict)
    """Rank -> what its environment alone has. `folder`: another run folder; `step 4`: what befalls it as it prepares that."""

    def __post_init__(self) -> None:
        self.changes = merge(SHARED, self.changes)

    def told(self, processes: int) -> dict[str, Any]:
        """What a worker is told."""
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
        """In this one process."""
        from relm.training.loop import pretrain

        places = self.examples / "manifest.json", self.examples / "tokenizer.json", None, self.model_folder
        return pretrain(self.recipe, "main", *places, self.fingerprint, until=until)

    def columns(self, *names: str) -> npt.NDArray[np.float64]:
        """Some figures of each line, nan where a line lacks one."""
        return np.array([[line.get(name, np.nan) for name in names] for line in self.lines()])

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        found: dict[str, npt.NDArray[np.float32]] = load_file(self.model_folder / "model.safetensors")
        return found


def start_ranks(runs: list[SharedRun], processes: int, before: str = "", **environment: str) -> "subprocess.Popen[str]":
    """Start torchrun on some runs.

    Args:
        before: what each worker executes first.
    """
    folder = runs[0].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_text(json.dumps([run.told(processes) for run in runs]))
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


def said(done: "subprocess.CompletedProcess[str]", run: SharedRun) -> list[str]:
    """What each rank said of a run, in order of rank."""
    before = f"{run.folder.name}, rank "
    lines = [line.removeprefix(before) for line in done.stdout.splitlines() if line.startswith(before)]
    return [words for _, _, words in sorted(line.partition(": ") for line in lines)]
