"""A recipe of several processes in a small project, trained by whatever starts them, and what came of it."""

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from relm.artifact import sha256_of
from relm.recipes.project import Project
from small_project import Commands

RECIPE = """
extends: tiny
run: {{processes: {processes}, micro_batch_size: 1}}
pretrain: {{main: {{steps: 600}}}}
evaluate: []
"""


class SharedRun:
    """The run; `relm pretrain shared` in the project's folder trains it."""

    def __init__(self, project: Commands, processes: int = 2) -> None:
        self.project, self.environment = project, project.environment
        self.set_processes(processes)
        self.model = project.folder / Project(project.folder).plan("shared").model_folder("main")
        self.phase = self.model.parent

    def set_processes(self, processes: int) -> None:
        (self.project.folder / "recipes" / "shared.yaml").write_text(RECIPE.format(processes=processes))

    def start(self, command: Sequence[str], output: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start a command in the project's folder, its streams in a file of it."""
        with open(self.project.folder / output, "wb") as out:
            return subprocess.Popen(
                command, cwd=self.project.folder, env={**self.environment, **environment}, stdout=out, stderr=subprocess.STDOUT
            )

    def read(self, output: str) -> str:
        return (self.project.folder / output).read_text()

    def wait_for_checkpoint(self, *processes: "subprocess.Popen[bytes]") -> None:
        """Wait until one was saved, which leaves nine tenths of the steps and more."""
        end = time.monotonic() + 120
        while not any(self.phase.glob("checkpoints/step-*")):
            assert time.monotonic() < end, "no checkpoint within two minutes"
            assert all(process.poll() is None for process in processes), "a process has ended"
            time.sleep(0.05)

    def sha256(self) -> str:
        return sha256_of(self.model / "model.safetensors")

    def order(self) -> str:
        return (self.phase / "order.json").read_text()

    def losses(self) -> list[float]:
        lines = [json.loads(line) for line in (self.phase / "train.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def remove(self) -> None:
        shutil.rmtree(self.phase, ignore_errors=True)


def train_undisturbed(finished: Commands, folder: Path) -> SharedRun:
    """Train the run in two processes on this machine, with relm only."""
    subprocess.run(["cp", "-a", str(finished.folder), str(folder)], check=True)
    run = SharedRun(Commands(folder))
    done = run.project.relm("pretrain", "shared")
    assert done.returncode == 0, done.stderr
    return run
