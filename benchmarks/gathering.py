"""Compare random gathering of a table's rows with pyarrow and `datasets` by speed: `python benchmarks/gathering.py`.

The table is written first, into a temporary folder, and read once, so that it is in the page cache as it is during training.
Each batch is of other random rows, the same for all readers, which take turns; a reader's figure is its median. Then opening,
and the memory of writing, are measured in fresh processes.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from relm.examples.columns import Column
from relm.examples.table import ExampleTable, table_writer

LENGTH = 128
WRITTEN_AT_ONCE = 2**14


def write(path: Path, rows: int) -> tuple[float, int]:
    """Seconds, and this process's peak memory in MB."""
    generator = np.random.default_rng(0)
    columns = [Column("input_ids", "uint16", LENGTH), Column("word_starts", "bool", LENGTH), Column("length", "uint16")]
    started = time.perf_counter()
    with table_writer(path, columns, {}) as writer:
        for first in range(0, rows, WRITTEN_AT_ONCE):
            ids = generator.integers(0, 30_000, (min(WRITTEN_AT_ONCE, rows - first), LENGTH), dtype=np.uint16)
            writer.append({"input_ids": ids, "word_starts": ids % 2 == 0, "length": np.full(len(ids), LENGTH)})
    return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def opening(path: Path) -> float:
    """Return the seconds until the first row is there."""
    started = time.perf_counter()
    ExampleTable(path).rows("input_ids", np.array([0]))
    return time.perf_counter() - started


def readers(path: Path) -> dict[str, Callable[[Any], Any]]:
    """Return name -> a function from row numbers to their token ids, (rows, LENGTH)."""
    ours = ExampleTable(path)
    whole = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    column = whole["input_ids"]
    peer = Dataset(whole).with_format("numpy", columns=["input_ids"])
    return {
        "relm": lambda rows: ours.rows("input_ids", rows),
        "pyarrow": lambda rows: column.take(pa.array(rows)).combine_chunks().values.to_numpy().reshape(-1, LENGTH),
        "datasets": lambda rows: peer[rows.tolist()]["input_ids"],
    }


def compare(readers: dict[str, Callable[[Any], Any]], rows: int, batch: int, rounds: int) -> None:
    """Print the rate of each reader for batches of one size."""
    generator = np.random.default_rng(1)
    times: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        indices = generator.integers(0, rows, batch)
        expected = None
        for name, read in readers.items():
            started = time.perf_counter()
            found = read(indices)
            if number:  # the first round finds out where batches lie
                times.setdefault(name, []).append(time.perf_counter() - started)
            expected = found if expected is None else expected
            assert np.array_equal(found, expected)
    ours = statistics.median(times["relm"])
    for name, seconds in times.items():
        ratios = sorted(theirs / mine for theirs, mine in zip(seconds, times["relm"], strict=True))
        middle = statistics.median(seconds)
        print(
            f"batches of {batch:,}: {name:8} {batch / middle:12,.0f} rows/s, {middle / ours:6.1f} times as long as relm "
            f"({ratios[len(ratios) // 10]:.1f} to {ratios[-1 - len(ratios) // 10]:.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the reading of tables.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        path = Path(folder) / "rows.arrow"
        seconds, memory = fresh.submit(write, path, arguments.rows).result()
        size = path.stat().st_size
        print(
            f"wrote {arguments.rows:,} rows of {LENGTH} tokens, {size / 1e6:,.0f} MB, in {seconds:.1f} s; "
            f"peak memory {memory} MB"
        )
        print(f"opened and read a row in {1000 * fresh.submit(opening, path).result():.1f} ms")
        path.read_bytes()
        opened = readers(path)
        for batch in (256, 8192):
            compare(opened, arguments.rows, batch, arguments.rounds)


if __name__ == "__main__":
    main()
