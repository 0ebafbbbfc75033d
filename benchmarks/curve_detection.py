"""The watch over a published curve as a detector: how soon it sees planted faults, and how often it is wrong without one.

    python benchmarks/curve_detection.py --runs FOLDER --text FILE [--steps 300] [--clean 50]

The published curve is that of clean runs, `--repetitions` of them (`planted_faults.py`); the others are watched against it,
with the default window and rate of false alarms. Where the order of the data is the same in all runs, as in the repetition of a
run whose order is known, the band is narrower. Printed are, for each fault, the runs in which it is seen, the median step at
which the run leaves the band, and what the watch says it is like. Runs that are there already are not repeated.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from planted_faults import FAULTS, add_sizes, log_of, make_runs

from relm.recipes.curves import Curve, CurveBand, ExpectedCurve
from relm.training.curve_watch import CurveWatch, read_lines, watched

Lines = list[dict[str, Any]]


def curve_of(runs: Sequence[Lines]) -> Curve:
    """Return the published curve with the repetitions that these runs are."""
    losses = np.array([[line["loss"] for line in lines] for lines in runs])
    norms = np.array([[line["gradient_norm"] for line in lines] for lines in runs])
    columns = {
        "loss": losses.mean(axis=0).tolist(),
        "learning_rate": [line["learning_rate"] for line in runs[0]],
        "gradient_norm": np.exp(np.log(norms).mean(axis=0)).tolist(),
        **{f"loss_{number}": run.tolist() for number, run in enumerate(losses, 1)},
        **{f"gradient_norm_{number}": run.tolist() for number, run in enumerate(norms, 1)},
    }
    return Curve("clean", {}, [line["step"] for line in runs[0]], columns)


def watch_run(lines: Lines, curve: Curve, repetitions: int, interval: int, ignored: Sequence[str] = ()) -> CurveWatch:
    """Return the watch of a run whose lines are logged at an interval, without some columns."""
    band = CurveBand(basis="clean runs", runs=repetitions)
    kept = [line for line in lines if line["step"] == 1 or not line["step"] % interval]
    return watched(
        ExpectedCurve(curve="clean", band=band),
        curve,
        [{key: value for key, value in line.items() if key not in ignored} for line in kept],
    )


def describe(watches: Sequence[CurveWatch], alone: Sequence[CurveWatch]) -> str:
    """Return the cells of a fault: seen, median step, the same by the loss only, and resemblances with their counts."""

    def seen(found: Sequence[CurveWatch]) -> str:
        steps = [watch.left_at for watch in found if watch.left_at is not None]
        return f"{len(steps)} of {len(found)} | {f'{median(steps):.0f}' if steps else '–'}"

    phrases = Counter(
        re.sub(r": its norm.*", "", watch.verdict.rpartition("; ")[2]) for watch in watches if "; as with" in watch.verdict
    )
    words = ", ".join(f"“{phrase}” {count}" for phrase, count in phrases.most_common())
    return f"{seen(watches)} | {seen(alone)} | {words or '–'}"


def print_table(given: argparse.Namespace, order: str) -> None:
    """Print the table of one kind of order, for the runs that are there."""
    logs = {seed: log_of(given.runs, order, "clean", seed) for seed in range(1, 1 + given.repetitions + given.clean)}
    clean = {seed: read_lines(log) for seed, log in logs.items() if log.exists()}
    published = [lines for seed, lines in clean.items() if seed <= given.repetitions]
    if len(published) < 2:
        return
    curve = curve_of(published)
    print(f"\norder of the data: {order}; {len(published)} repetitions, {given.steps} steps, log interval {given.interval}\n")
    print("| fault | seen | at step | by the loss alone | at step | said to be like |\n|---|---|---|---|---|---|")
    for fault in FAULTS:
        if fault == "clean":
            runs = [lines for seed, lines in clean.items() if seed > given.repetitions]
        else:
            paths = [log_of(given.runs, order, fault, 1001 + number) for number in range(given.faulty)]
            runs = [read_lines(path) for path in paths if path.exists()]
        if runs:
            both = [watch_run(lines, curve, len(published), given.interval) for lines in runs]
            alone = [watch_run(lines, curve, len(published), given.interval, ["gradient_norm"]) for lines in runs]
            print(f"| {fault} | {describe(both, alone)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser)
    parser.add_argument("--interval", type=int, default=1, help="steps between lines")
    parser.add_argument("--only-watch", action="store_true", help="train nothing, and watch the runs that are there")
    given = parser.parse_args()
    if not given.only_watch:
        make_runs(given.runs, given.text, given.steps, vars(given), given.orders)
    for order in given.orders:
        print_table(given, order)


if __name__ == "__main__":
    main()
