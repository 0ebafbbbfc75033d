"""Compare a dry-run of 30 recipes over 50 shards with an empty workflow: `python benchmarks/parsing.py [--runs 5]`.

Both run in turn, so that a noisy machine disturbs them alike; processor time of the whole process is compared.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CHECKOUT / "tests"), str(CHECKOUT / "tests" / "workflow")]

from test_graph import write_synthetic_recipes  # noqa: E402

from small_project import make_project  # noqa: E402


def processor_seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Return the user and system time of one command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "relm").mkdir()
        made = make_project(Path(folder) / "relm")
        write_synthetic_recipes(made.folder, recipes=30, shards=50)
        empty = Path(folder) / "empty"
        empty.mkdir()
        (empty / "Snakefile").write_text("rule all:\n    output: 'out'\n    shell: 'touch {output}'\n")
        environment = {**made.environment, "HOME": os.environ.get("HOME", folder)}
        ours, theirs = [], []
        for _ in range(runs + 1):  # the first pair warms the caches
            ours.append(processor_seconds(["snakemake", "-n", "all", "-q", "all"], made.folder, environment))
            theirs.append(processor_seconds(["snakemake", "-n", "-q", "all"], empty, environment))
        ratios = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
        extra = [a - b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    print(f"dry-run of 30 recipes, 50 shards (303 jobs): {statistics.median(ours[1:]):.2f} s of processor time")
    print(f"dry-run of an empty workflow:                {statistics.median(theirs[1:]):.2f} s")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f} over {runs} pairs)")
    print(f"beyond the empty workflow: {statistics.median(extra):.2f} s ({min(extra):.2f} to {max(extra):.2f})")


if __name__ == "__main__":
    main()
