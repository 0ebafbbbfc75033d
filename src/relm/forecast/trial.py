"""A measured optimizer step of a recipe at its real shapes, taken by a process of its own. Imports no torch.

A process of its own reports the memory of this work alone, and where the kernel ends it for want of memory nothing else ends.
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

# A launcher's first word -> how this Python starts the same.
PROGRAMS = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}


class Trial(NamedTuple):
    """The measured step, on average over some; each process of several measures its own."""

    micro_batches: int
    """At most as many as a real step has."""
    passes: float
    """Seconds of their forward and backward passes, clipping included."""
    update: float
    """Seconds of the optimizer."""
    memory: int | None
    """Most bytes that a process held: on a CPU of main memory, on a GPU of its own; None: not reported."""
    device: str

    def step_seconds(self, micro_batches: int) -> float:
        """Return the seconds of a step of so many micro-batches."""
        return self.passes * micro_batches / self.micro_batches + self.update


def take_trial(recipe: str, phase: str, processes: int) -> Trial:
    """Take a step of one phase in a process of its own, or in as many as the recipe has; their messages go to stderr.

    Raises:
        RelmError: the trial ended with an error.
    """
    first, *words = launcher(processes)
    with TemporaryDirectory(prefix="relm-trial-") as folder:
        figures = Path(folder) / "trial.json"
        command = [*PROGRAMS[first], *words, "rehearse", recipe, "--phase", phase, "--trial", str(figures)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, STOP_WITH_PARENT: "1"}, check=False)
        if done.returncode < 0:
            raise RelmError(f"signal {-done.returncode} ended the trial; a step may need more memory than there is")
        if done.returncode:
            raise RelmError(f"the trial ended with status {done.returncode}; its message stands above")
        return Trial(**read_json(figures))


def write_trial(path: Path, trial: Trial) -> None:
    """Write the figures as JSON."""
    write_json(path, trial._asdict())
