"""Repeat all steps of a run in one process, and measure whether descriptors, threads, files or memory are left behind.

    make soak MINUTES=60

A run is made once by Snakemake. Then its steps, as their records list them, are called again and again in this process, each
round from nothing. The exit status is 1 if a count is higher in the last quarter of the rounds than in the second, or if
memory grew by more than `LARGEST_GROWTH` a round.
"""

import argparse
import contextlib
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from disturbed_project import RECIPES

from relm.cli import main as run_command
from small_project import make_project

LARGEST_GROWTH = 128 << 10
"""Bytes of memory that a round may leave behind: an hour of them adds less than a step needs by itself."""
FEWEST_ROUNDS = 8


@dataclass(frozen=True)
class Use:
    """Resources of this process after a round."""

    descriptors: int
    threads: int
    processes: int
    """Processes that it started and that still run."""
    temporary_files: int
    memory: int
    """Resident bytes."""


def measure(temporary: Path) -> Use:
    """Return the resources in use; garbage is collected first."""
    gc.collect()
    here = psutil.Process()
    return Use(
        descriptors=here.num_fds(),
        threads=here.num_threads(),
        processes=len(here.children(recursive=True)),
        temporary_files=sum(1 for _ in temporary.rglob("*")),
        memory=here.memory_info().rss,
    )


def find_leaks(uses: Sequence[Use]) -> list[str]:
    """Return a sentence for each resource of which the last quarter of the rounds has more than the second.

    The first quarter is left out: caches fill then.
    """
    quarter = len(uses) // 4
    leaks = []
    for name in asdict(uses[0]):
        early, late = (
            statistics.median(getattr(use, name) for use in part) for part in (uses[quarter : 2 * quarter], uses[-quarter:])
        )
        allowed = LARGEST_GROWTH * 2 * quarter if name == "memory" else 0
        if late - early > allowed:
            leaks.append(f"{name}: {early:,.0f} in the second quarter of {len(uses)} rounds, {late:,.0f} in the last")
    return leaks


def read_commands(work: Path) -> list[list[str]]:
    """Return the arguments of `relm` for all steps of a run, in the order in which they ran."""
    records = [json.loads(path.read_text()) for path in work.rglob("*.record.json")]
    return [record["argv"][1:] for record in sorted(records, key=lambda record: record["started"])]


def run_round(commands: Sequence[Sequence[str]], work: Path) -> None:
    """Run all steps from nothing in this process.

    Raises:
        AssertionError: one failed.
    """
    shutil.rmtree(work)
    for command in commands:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            status = run_command(command)
        assert status == 0, command


def main() -> int:
    """Run rounds until the time is over, print the resources, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="begin no new round after so many minutes (5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as made:
        folder, temporary = Path(made) / "project", Path(made) / "temporary"
        for each in (folder, temporary):
            each.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        project = make_project(folder)
        recipe = RECIPES["causal"].replace("steps: 1200", "steps: 40").replace("interval: 40", "interval: 10")
        (folder / "recipes" / "tiny.yaml").write_text(recipe)
        done = project.run_command("results/tiny")
        assert done.returncode == 0, done.stdout
        os.environ["RELM_MIRROR"] = project.environment["RELM_MIRROR"]
        os.chdir(folder)
        commands, uses = read_commands(folder / "work"), list[Use]()
        print(f"soak: {len(commands)} steps a round, for {options.minutes:g} minutes", flush=True)
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end or len(uses) < FEWEST_ROUNDS:
            run_round(commands, folder / "work")
            uses.append(measure(temporary))
            if len(uses) & (len(uses) - 1) == 0:
                print(f"round {len(uses)}: {uses[-1]}", flush=True)
        print(f"round {len(uses)}: {uses[-1]}")
        leaks = find_leaks(uses)
        print(*leaks or ["nothing was left behind"], sep="\n")
        os.chdir("/")
    return int(bool(leaks))


if __name__ == "__main__":
    sys.exit(main())
