"""A measured optimizer step of a recipe at its real shapes, taken by a process of its own. Imports no torch.

A process of its own reports the memory of this work alone, and if the kernel kills it for lack of memory, nothing else ends.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from relm.artifact import read_json, write_json
from relm.devices.ranks import launcher
from relm.errors import RelmError
from relm.training.interruption import STOP_WITH_PARENT

PYTHON = [sys.executable]


class Trial(NamedTuple):
    """A measured step, averaged over several; each process measures its own."""

    micro_batches: int
    """The count of micro-batches in the measured step, at most that of a real one."""
    passes: float
    """Seconds of their forward and backward passes, clipping included."""
    update: float
    """Seconds of the optimizer."""
    memory: int | None
    """Peak memory of a process in bytes: main memory on a CPU, its own on a GPU; None: not reported."""
    device: str

    def step_seconds(self, micro_batches: int) -> float:
        """Return the seconds of a step of the given count of micro-batches."""
        return self.passes * micro_batches / self.micro_batches + self.update


def take_trial(recipe: str, phase: str, processes: int) -> Trial:
    """Measure a step of one phase in a process of its own, or in as many as the recipe has; their messages go to stderr.

    Raises:
        RelmError: the trial ended with an error.
    """
    words = launcher(processes)[1:]
    with TemporaryDirectory(prefix="relm-trial-") as folder:
        figures = Path(folder) / "trial.json"
        command = [*PYTHON, *words, "rehearse", recipe, "--phase", phase, "--trial", str(figures)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, STOP_WITH_PARENT: "1"}, check=False)
        if done.returncode < 0:
            raise RelmError(f"signal {-done.returncode} ended the trial; a step may need more memory than there is")
        if done.returncode:
            raise RelmError(f"the trial ended with status {done.returncode}; its message is printed above")
        return Trial(**read_json(figures))


def write_trial(path: Path, trial: Trial) -> None:
    """Write the figures as JSON."""
    write_json(path, trial._asdict())
