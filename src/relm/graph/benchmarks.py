"""Files of `benchmark:`, which Snakemake takes for outputs where they are logs: what depends on them is changed here.

Such a file stays when a run is removed, and does not come with one that is pulled or continued from another machine.
"""

import contextlib
from pathlib import Path
from typing import Any


def count_as_logs() -> None:
    """Have Snakemake make nothing again because of a benchmark's file, and fail no job whose file cannot be written.

    Without the first change, it would take the file of an earlier run for the oldest output, and where its records are missing,
    it would train a newer model again. Without the second one, it would delete what a job of hours has made, because the
    folder of logs was removed meanwhile or the disk is full.
    """
    from snakemake import benchmark
    from snakemake.jobs import Job

    write = benchmark.write_benchmark_records

    def write_if_possible(records: Any, path: str, *others: Any) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write(records, path, *others)

    async def output_mintime(self: Any) -> float | None:
        times = [(await file.mtime()).local_or_storage() for file in self.output if await file.exists()]
        return min(times, default=None)

    benchmark.write_benchmark_records = write_if_possible
    Job.output_mintime = property(output_mintime)
