"""Measure the time and memory in which the order of examples is computed: `python benchmarks/order.py [--positions N]`.

The peer is a stored permutation (`numpy.random.Generator.permutation`), as large as the set of examples and made once an epoch,
before the first example. Both are measured in turns, each in a fresh process, so that its peak memory is its own.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from relm.examples.order import example_indices

BATCH = 2**16
# 10**10 examples stored would be 80 GB.
SIZES = (10**6, 3 * 10**7, 10**10)
LARGEST_STORED = 3 * 10**7
REPETITIONS = 5


def computed(size: int, positions: int) -> tuple[float, int]:
    """Return the seconds for positions of the second epoch, in batches, and the peak memory in MB beyond that before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    for first in range(size + size // 3, size + size // 3 + positions, BATCH):
        example_indices(1, np.arange(first, first + BATCH), size)
    seconds = time.perf_counter() - started
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


def stored(size: int, positions: int) -> tuple[float, int]:
    """Measure a stored permutation as `computed` does; the time includes making it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    order = np.random.default_rng(1).permutation(size)
    for first in range(size // 3, size // 3 + positions, BATCH):
        np.take(order, np.arange(first, first + BATCH), mode="wrap")
    seconds = time.perf_counter() - started
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


def in_fresh_process(function: Callable[..., tuple[float, int]], *arguments: int) -> tuple[float, int]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the order of examples.")
    parser.add_argument("--positions", type=int, default=2**22, help="positions a measurement")
    positions = parser.parse_args().positions
    for size in SIZES:
        ours, theirs = [], []
        for _ in range(REPETITIONS):
            ours.append(in_fresh_process(computed, size, positions))
            if size <= LARGEST_STORED:
                theirs.append(in_fresh_process(stored, size, positions))
        for name, runs in (("computed", ours), ("stored", theirs)):
            if runs:
                rates = sorted(positions / seconds for seconds, _ in runs)
                memory = max(peak for _, peak in runs)
                print(
                    f"{size:,} examples, {name}: {statistics.median(rates):,.0f} positions/s "
                    f"({rates[0]:,.0f} to {rates[-1]:,.0f}), {memory} MB"
                )
        if theirs:
            ratios = sorted(peer[0] / own[0] for own, peer in zip(ours, theirs, strict=True))
            print(f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); above 1: computing is faster")


if __name__ == "__main__":
    main()
