"""Sources that are deleted after use: `--config shards_on_disk=N` has a few shards of a dataset on the disk at once.

The files are the downloads of datasets, and the documents that are extracted from them. Snakemake deletes each when no job of
the graph needs it any more; sidecars, records and examples stay. A download waits while so many shards are on the disk, so that
the jobs that use up a shard come first. Files that a later command needs are made again, and must have the recorded sha256.
"""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake.io import temp

from relm.artifact import record_of, sidecar_of
from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import PROJECT, stop_at_faults
from relm.provenance.deleted_sources import recorded_sha256
from relm.provenance.step_record import read_record
from relm.recipes.identity import is_source
from relm.recipes.redaction import shorten_path

SHARDS_ON_DISK = "shards_on_disk"
"""Key of Snakemake's configuration."""
DOWNLOAD = "download_data"

Shard = tuple[str, str]


class Sources:
    """The choice whether the sources of examples stay on the disk, and the graph's answer to their absence."""

    def __init__(self, workflow: Any, config: Mapping[str, Any]) -> None:
        """Read the number of shards from Snakemake's configuration, and have its scheduler keep to it.

        Raises:
            SystemExit: it is no whole number from 1 on.
        """
        self.workflow = workflow
        limit = stop_at_faults(read_limit)(config.get(SHARDS_ON_DISK))
        self.limit = None if workflow.storage_settings.notemp else limit
        """Number of shards of all datasets that may be on the disk at once; None: everything stays, as with --notemp."""
        if self.limit is not None and is_main_process(workflow):
            _hold_downloads(self.limit)

    def deleted_after_use(self, pattern: str) -> Any:
        """Return the pattern of an output, marked as temporary if sources are deleted."""
        return pattern if self.limit is None else temp(pattern)

    def unless_used_up(
        self, list_inputs: Callable[[Any], Mapping[str, Any]], list_outputs: Callable[[Any], Sequence[Path]]
    ) -> Callable[[Any], Mapping[str, Any]]:
        """Return an input function without any inputs for a job whose outputs are there and whose sources were deleted.

        They need not be made again where another job has the sources made again, as long as the records that stayed say that
        they were made from these sources.
        """

        @functools.wraps(list_inputs)
        def inputs(wildcards: Any) -> Mapping[str, Any]:
            files = list_inputs(wildcards)
            deleted = [] if self._is_forced else [path for path in _flatten(files.values()) if _is_deleted(path)]
            if not deleted:
                return files
            outputs = list_outputs(wildcards)
            return {} if self._are_made(outputs) and are_made_from(outputs[0], deleted) else files

        return inputs

    @property
    def _is_forced(self) -> bool:
        """Jobs run although their outputs are there."""
        settings = self.workflow.dag_settings
        return bool(settings.forceall or settings.forcerun or settings.forcetargets)

    def _are_made(self, outputs: Sequence[Path]) -> bool:
        """Return whether files and their sidecars are there, and Snakemake does not take them for incomplete."""
        files = [each for path in outputs for each in ([path] if path.suffix == ".json" else [path, sidecar_of(path)])]
        records = self.workflow.persistence
        marks = [records._record_path(records._incomplete_path, str(path)) for path in outputs]
        return all(path.exists() for path in files) and not any(map(os.path.exists, marks))


def read_limit(given: Any) -> int | None:
    """Return the number of shards in Snakemake's configuration.

    >>> read_limit("2"), read_limit(None)
    (2, None)

    Raises:
        RelmError: it is no whole number from 1 on.
    """
    if given is None:
        return None
    if not str(given).isdecimal() or int(str(given)) < 1:
        raise RelmError(
            f"--config {SHARDS_ON_DISK}={given}: expected a whole number from 1 on, such as {SHARDS_ON_DISK}=2; leave it out "
            "to keep all sources"
        )
    return int(str(given))


def are_made_from(output: Path, sources: Iterable[Path]) -> bool:
    """Return whether the record of a step's first output has the same sha256 of each source as the source's own record."""
    try:
        read = {entry["path"]: entry["sha256"] for entry in read_record(record_of(output))["inputs"]}
        return all(recorded_sha256(path) == read.get(shorten_path(path), "") for path in sources)
    except RelmError:  # a record is absent or damaged
        return False


def _is_deleted(path: Path) -> bool:
    return is_source(path) and not path.exists()


def _flatten(values: Iterable[Any]) -> list[Path]:
    return [Path(path) for value in values for path in ([value] if isinstance(value, str) else value)]


# --- the scheduler -----------------------------------------------------------------------------------------------------------


def _hold_downloads(limit: int) -> None:
    """Have Snakemake's scheduler start a shard's download only while fewer shards than the limit are on the disk."""
    from snakemake.scheduling.job_scheduler import JobScheduler

    list_open = JobScheduler.open_jobs.fget
    is_swept: list[bool] = []

    def open_jobs(self: Any) -> list[Any]:
        if self.dryrun or self.touch:
            return list(list_open(self))
        if not is_swept:
            is_swept.append(True)
            _delete_used_up(self.workflow)
        return choose_jobs(self.workflow.dag, list_open(self), self.running, limit)

    JobScheduler.open_jobs = property(open_jobs)


def choose_jobs(dag: Any, ready: Sequence[Any], running: Iterable[Any], limit: int) -> list[Any]:
    """Return the jobs that may start: all but downloads of datasets, and as many of these as the limit leaves.

    Where nothing else can run, one download may: so a job that needs the documents of all shards gets them.
    """
    downloads = sorted((job for job in ready if job.rule.name == DOWNLOAD), key=_place_in_dataset)
    others = [job for job in ready if job.rule.name != DOWNLOAD]
    if not downloads:
        return others
    running = set(running)
    occupied = find_occupied(dag, running)
    started = [job for job in downloads if _shard_of(job) in occupied]
    new = [job for job in downloads if _shard_of(job) not in occupied]
    chosen = [*others, *started, *new[: max(0, limit - len(occupied))]]
    return chosen if chosen or running else downloads[:1]


def _place_in_dataset(job: Any) -> tuple[str, int]:
    name, shard = _shard_of(job)
    return name, list(PROJECT.dataset(name).files).index(shard)


def _shard_of(job: Any) -> Shard:
    return str(job.wildcards.dataset), str(job.wildcards.shard)


def find_occupied(dag: Any, running: Iterable[Any]) -> set[Shard]:
    """Return the shards that are on the disk, or arrive there, and will be deleted without another download.

    A shard whose documents wait for a job that needs more downloads, such as the training of a tokenizer, does not count.
    """
    running = set(running)
    waits: dict[Any, bool] = {}

    def is_open(job: Any) -> bool:
        return bool(dag.needrun(job) and not dag.finished(job))

    def waits_for_download(job: Any) -> bool:
        if job not in waits:
            waits[job] = (job.rule.name == DOWNLOAD and job not in running) or any(
                waits_for_download(each) for each in dag.dependencies[job] if is_open(each)
            )
        return waits[job]

    def is_occupying(job: Any) -> bool:
        if job in running or is_open(job):
            return job in running
        users = [user for user, files in dag.depending[job].items() if not job.temp_output.isdisjoint(files)]
        return any(is_open(user) and not waits_for_download(user) for user in users)

    return {_shard_of(job) for job in dag.jobs if job.temp_output and is_occupying(job)}


def _delete_used_up(workflow: Any) -> None:
    """Delete the files that an earlier command would have deleted: it was killed before, or had all sources kept."""
    dag = workflow.dag
    for job in dag.jobs:
        if dag.needrun(job) or not dag.depending[job]:
            continue
        for file in job.temp_output:
            if file not in dag.targetfiles and not dag.is_needed_tempfile(job, file):
                Path(str(file)).unlink(missing_ok=True)
