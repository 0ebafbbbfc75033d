"""Measure all comparisons with originals: `python tests/oracles/compare.py [NAME ...] [--write]`.

With --write the figures of the named originals, or of all, go into docs/oracles.json.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from comparison import Comparison, compare
from golden_files import STEPS, read_golden
from originals import BY_NAME, ORACLES
from our_runs import Oracle, train

from relm.reporting.oracles import TABLE, MeasuredOracle, read_oracles

COMMAND = "python tests/oracles/compare.py --write"


def measure(oracle: Oracle) -> Comparison:
    """Train the twin, and compare it with the golden."""
    golden = read_golden(oracle.name)
    with tempfile.TemporaryDirectory() as folder:
        return compare(oracle, golden, train(oracle, golden.initial, Path(folder)))


def describe(oracle: Oracle, found: Comparison) -> MeasuredOracle:
    """Return a comparison as docs/oracles.json has it, with two digits of each figure."""
    figures = {name: float(f"{getattr(found, name):.1e}") for name in ("loss", "gradient_norm", "weights")}
    commit = read_golden(oracle.name).commit
    return MeasuredOracle(oracle.name, oracle.original, commit, list(oracle.recipes), STEPS, **figures, note=oracle.note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"originals: {', '.join(BY_NAME)}")
    parser.add_argument("--write", action="store_true", help="write docs/oracles.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {row.name: row for row in read_oracles()}
    for name in given.names or BY_NAME:
        found = measure(BY_NAME[name])
        print(f"{name}: {found.first or 'equal'}; loss {found.loss:.1e}, gradient norm {found.gradient_norm:.1e}", end="")
        print(f", weights {found.weights:.1e} ({found.farthest})", flush=True)
        if found.first is None:
            rows[name] = describe(BY_NAME[name], found)
    if given.write:
        listed = [asdict(rows[oracle.name]) for oracle in ORACLES if oracle.name in rows]
        TABLE.write_text(json.dumps({"made_by": COMMAND, "originals": listed}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
