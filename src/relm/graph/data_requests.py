"""Resources that a download, or a job that prepares data, requests from a cluster, from the sizes that recipes state."""

from collections.abc import Callable
from typing import Any

from relm.graph.asking import PROJECT, report_faults
from relm.graph.data import find_data_job
from relm.graph.default_requests import (
    DISK_MB,
    DOWNLOADED_MB_A_MINUTE,
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
from relm.recipes.jobs import DocumentsJob, ExamplesJob
from relm.recipes.remote_files import RemoteFile

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
def download_runtime(wildcards: Any) -> int:
    """Return the minutes of a download at a slow rate; one that is stopped resumes."""
    return min(START + download_disk(wildcards) // DOWNLOADED_MB_A_MINUTE, LONGEST)


def data_request(product: str, resource: str) -> Callable[..., Any]:
    """Return the function of a rule's wildcards and threads that returns a resource of a job that prepares data.

    Args:
        product: `documents`, `tokenizer` or `examples`.
        resource: `disk_mb` or `runtime`.
    """

    @report_faults
    def request(wildcards: Any, threads: int) -> int:
        job = find_data_job(product, wildcards)
        text = _text_mb(job, wildcards)
        if resource == "disk_mb":
            return max(DISK_MB, EXAMPLES_OF_TEXT * _copies(job) * text if isinstance(job, ExamplesJob) else text)
        return min(max(RUNTIME, START + _copies(job) * text // (PREPARED_MB_A_MINUTE * threads)), LONGEST)

    return request


def workers_memory(wildcards: Any, threads: int) -> int:
    """Return the main memory in MB of a job that has a worker process for each thread."""
    return max(MEMORY_MB, MEMORY_MB_OF_WORKER * threads)


def _text_mb(job: Any, wildcards: Any) -> int:
    """Return the largest size of a shard's documents in MB; 0: it is not known, as of a folder or of a tokenizer's documents."""
    documents = job if isinstance(job, DocumentsJob) else getattr(job, "documents", None)
    file = documents.dataset.files.get(wildcards.get("shard")) if documents else None
    if file is None:
        return 0
    return count_megabytes(file.largest_size) * (TEXT_OF_COMPRESSED if wildcards.shard.endswith(COMPRESSED) else 1)


def _copies(job: Any) -> int:
    """Return how often examples have each document."""
    masked = job.document.get("masked") or {}
    return int(masked.get("duplication_factor", 1))
