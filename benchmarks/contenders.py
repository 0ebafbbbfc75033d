"""Processes that run a benchmark's task in turns, so that all see the same machine: relm's and those of its peers.

A contender is the script of the running benchmark, started with `--contender REQUEST` by the Python of its environment. It
loads what it needs, writes a line, and then answers each line of its input with the times and the result of one run.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any


def answer(prepare: Callable[[], Callable[[], Any]]) -> None:
    """Act as a contender: answer each input line with the seconds, the result and the peak memory, in MB, of a run.

    Args:
        prepare: loads the model and returns the function that is timed, whose result can be written as JSON.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    run = prepare()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        clock, processor = time.perf_counter(), time.process_time()
        found = run()
        took = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({**took, "found": found, "peak": peak}), file=answers, flush=True)


class Contender:
    """A process that runs its task on request, with the answers to all runs so far."""

    def __init__(self, name: str, python: str, request: dict[str, Any]) -> None:
        """Start the process and wait until it has loaded what it needs."""
        self.name, self.runs = name, list[dict[str, Any]]()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environment = {**os.environ, "OMP_NUM_THREADS": str(request["threads"]), **offline}
        command = [python, sys.argv[0], "--contender", json.dumps(request)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        self._process = subprocess.Popen(command, text=True, env=environment, **pipes)
        self._line()

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            sys.exit(f"{self.name} failed:\n{self._log.read()[-3000:]}")
        return line

    def run(self) -> None:
        """Run the task once."""
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        self.runs.append(json.loads(self._line()))

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()

    def median(self, key: str) -> float:
        """Return the median over all runs of their `clock`, `processor` or `peak`."""
        return median(run[key] for run in self.runs)

    def format_ratios(self, ours: "Contender") -> str:
        """Return the ratio of each run's time to that of relm's run in the same turn, with the spread."""
        ratios = {
            key: sorted(theirs[key] / mine[key] for theirs, mine in zip(self.runs, ours.runs, strict=True))
            for key in ("clock", "processor")
        }
        return ", ".join(f"{median(r):.2f} by {key} ({r[0]:.2f} to {r[-1]:.2f})" for key, r in ratios.items())


def run_in_turns(contenders: list[Contender], rounds: int) -> None:
    """Run the task of each contender once a round."""
    for _ in range(rounds):
        for contender in contenders:
            contender.run()
