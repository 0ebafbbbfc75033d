"""Resources that a download, or a job that prepares data, requests from a cluster, from the sizes that recipes state."""

from typing import Any

from relm.graph.asking import PROJECT, keep_signature, report_faults
from relm.graph.default_requests import (
    DISK_MB,
    EXAMPLES_OF_TEXT,
    LONGEST,
    MEMORY_MB,
    MEMORY_MB_OF_WORKER,
    PREPARED_MB_A_MINUTE,
    RUNTIME,
    START,
    TEXT_OF_COMPRESSED,
    count_megabytes,
)
from relm.recipes.files.remote_files import RemoteFile
from relm.recipes.jobs import ExamplesJob

COMPRESSED = (".bz2", ".gz", ".xz", ".zst", ".zip", ".tgz", ".parquet")


def requested_file(wildcards: Any) -> RemoteFile:
    """Return the file of a model, a published test or a dataset that a download's path names."""
    if hasattr(wildcards, "model"):
        return PROJECT.model(wildcards.model).files[wildcards.file]
    named = PROJECT.test(wildcards.test) if hasattr(wildcards, "test") else PROJECT.dataset(wildcards.dataset)
    return named.files[wildcards.shard]


@report_faults
def download_disk(wildcards: Any) -> int:
    """Return the largest size of a downloaded file in MB."""
    return count_megabytes(requested_file(wildcards).largest_size)


@report_faults
def import_disk(wildcards: Any) -> int:
    """Return the largest size of imported tokens in MB, which is that of their file."""
    return count_megabytes(PROJECT.dataset(wildcards.dataset).files[wildcards.shard].largest_size)


@report_faults
def documents_disk(wildcards: Any) -> int:
    """Return the largest size of a shard's documents in MB, or a default."""
    return max(DISK_MB, _text_mb(wildcards))


@report_faults
def examples_disk(wildcards: Any) -> int:
    """Return the largest size of a shard's examples in MB, or a default."""
    return max(DISK_MB, EXAMPLES_OF_TEXT * _copies(wildcards) * _text_mb(wildcards))


@report_faults
def documents_runtime(wildcards: Any, threads: int) -> int:
    """Return the minutes in which documents are extracted at a slow rate, at least a default."""
    return _slow_runtime(_text_mb(wildcards), threads)


@report_faults
def examples_runtime(wildcards: Any, threads: int) -> int:
    """Return the minutes in which examples are made at a slow rate, at least a default."""
    return _slow_runtime(_copies(wildcards) * _text_mb(wildcards), threads)


def _slow_runtime(megabytes: int, threads: int) -> int:
    return min(max(RUNTIME, START + megabytes // (PREPARED_MB_A_MINUTE * threads)), LONGEST)


@keep_signature
def workers_memory(wildcards: Any, threads: int) -> int:
    """Return the main memory in MB of a job that has a worker process for each thread."""
    return max(MEMORY_MB, MEMORY_MB_OF_WORKER * threads)


def _text_mb(wildcards: Any) -> int:
    """Return the largest size of a shard's documents in MB; 0: it is not known, as of a folder."""
    file = PROJECT.dataset(wildcards.dataset).files.get(wildcards.shard)
    if file is None:
        return 0
    return count_megabytes(file.largest_size) * (TEXT_OF_COMPRESSED if wildcards.shard.endswith(COMPRESSED) else 1)


def _copies(wildcards: Any) -> int:
    """Return how often examples have each document."""
    masked = PROJECT.find_job(ExamplesJob, wildcards.key, wildcards.dataset).document.get("masked") or {}
    return int(masked.get("duplication_factor", 1))
