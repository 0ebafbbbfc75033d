"""A benchmark's file that cannot be written fails no job; `test_rerun.py` has what a missing or an old one does not cause."""

from pathlib import Path

import pytest
from snakemake import benchmark
from snakemake.jobs import Job

from relm.graph.benchmarks import count_as_logs


def test_a_benchmark_is_written_into_a_removed_folder_and_its_faults_are_no_faults_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "write_benchmark_records", benchmark.write_benchmark_records)
    monkeypatch.setattr(Job, "output_mintime", Job.output_mintime)
    with pytest.raises(FileNotFoundError):
        benchmark.write_benchmark_records([], str(tmp_path / "logs" / "main.tsv"), False)
    count_as_logs()
    benchmark.write_benchmark_records([], str(tmp_path / "logs" / "main.tsv"), False)
    assert (tmp_path / "logs" / "main.tsv").read_text().startswith("s\th:m:s\tmax_rss")
    benchmark.write_benchmark_records([], "/dev/full", False)
