"""Sources that are deleted after use: `--config shards_on_disk=N` has a few shards of a dataset on the disk at once.

The files are the downloads of datasets, and the documents that are extracted from them. Snakemake deletes each when no job of
the graph needs it any more; sidecars, records and examples stay. A later command makes the files that it needs again, with the
recorded sha256.

Two properties of the rules hold downloads back. First, each job on a shard takes one of N slots, and a download takes as many
cores and as much memory as the jobs that use up a shard. Second, those jobs have a higher priority. So a download starts only
when all of them that are ready have started, and fewer than N jobs run. The import of a tokenizer, which every shard needs,
takes all slots and comes first. A shard takes no slot while its documents wait for a job that needs all of them, such as the
training of a tokenizer, or after its job failed; once N jobs have failed, further downloads fail.
"""

import contextlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake.io import temp

from relm.artifact import record_of, sidecar_of
from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import keep_signature, report_faults, stop_at_faults
from relm.graph.jobs import find_job, inputs_of
from relm.graph.variations import SHARDS_ON_DISK
from relm.provenance.deleted_sources import recorded_sha256
from relm.provenance.step_record import read_record
from relm.recipes.identity import is_source, work_folder
from relm.recipes.jobs import with_indexes
from relm.recipes.redaction import expand_path, shorten_path

USERS = ("extract", "remove_listed", "pregenerate", "pregenerate_table", "import_tokens")
"""The rules that use up a shard."""
BEFORE_SHARDS = ("download_model", "copy_model", "import_tokenizer")
"""The rules that come before the first shard."""


class Sources:
    """Keeps the sources of examples on the disk or deletes them, and plans jobs whose sources are gone."""

    def __init__(self, workflow: Any, config: Mapping[str, Any]) -> None:
        """Read the number of shards from Snakemake's configuration."""
        self.workflow = workflow
        limit = stop_at_faults(read_limit)(config.get(SHARDS_ON_DISK))
        self.limit = None if workflow.storage_settings.notemp else limit
        """Number of shards of all datasets that may be on the disk at once; None: everything stays, as with --notemp."""
        self.all_slots = self.limit or 1
        """Slots of a job before the first shard; a job on a shard takes one."""
        self.threads = max(1, (workflow.cores or 1) // self.all_slots)
        """CPU threads of a job on a shard."""
        self.priority, self.first_priority = (0, 0) if self.limit is None else (1, 1 + self.limit)
        """Priority of a job that uses up a shard, and of one before the first shard, which exceeds that of N others."""
        self.seen: set[Path] = set()
        """The sources of all jobs of the graph, still needed or not."""
        if self.limit is not None:
            workflow.register_resource("shards", self.limit)

    @keep_signature
    def priority_of_download(self, wildcards: Any) -> int:
        """Return the priority of a download; one that a killed command began comes first."""
        folder = work_folder() / "downloads" / "data" / wildcards.dataset / wildcards.key
        return self.priority if (folder / f".{wildcards.shard}.part").exists() else 0

    @keep_signature
    def stop_downloads(self, wildcards: Any, resources: Any) -> str:
        """Return a shell command that fails if N shards stay on the disk because of failed jobs; otherwise nothing."""
        failed = self.workflow.scheduler.failed if self.limit is not None and self.workflow.scheduler else ()
        left = {(job.wildcards.dataset, job.wildcards.shard) for job in failed if job.rule.name in USERS}
        before = [job.rule.name for job in failed if job.rule.name in BEFORE_SHARDS]
        if self.limit is None or (len(left) < self.limit and not before):
            return ""
        log = work_folder() / "logs/download/data" / wildcards.dataset / wildcards.key / f"{wildcards.shard}.log"
        cause = before[0] if before else f"the job on {', '.join(sorted(shard for _, shard in left))}"
        words = f"relm download: not started, because {cause} failed; correct that and run it again"
        return f'echo "$(date -u +%FT%TZ)" {shlex.quote(words)} | tee {shlex.quote(str(log))} >&2; exit 1; '

    def deleted_after_use(self, pattern: str) -> Any:
        """Return the pattern of an output, marked as temporary if sources are deleted."""
        return pattern if self.limit is None else temp(pattern)

    def inputs(self, rule: str) -> Callable[[Any], Mapping[str, Any]]:
        """Return the input function of a rule with which Snakemake leaves out a finished job whose sources were deleted.

        The job's one input is in a folder that no rule writes to, so Snakemake keeps the outputs, even if another job makes the
        sources again, as long as the records say that the outputs were made from them. With a limit of shards, a job that makes
        sources stays in the graph, because Snakemake deletes only what its jobs make.
        """

        @report_faults
        def inputs(wildcards: Any) -> Mapping[str, Any]:
            job = find_job(rule, wildcards)
            sources = [path for files in job.hashed.values() for path in files if is_source(path)]
            self.seen.update(sources)
            if sources and (self.limit is not None or not all(path.exists() for path in sources)):
                outputs = list(job.outputs.values())
                is_deleted_later = self.limit is not None and is_source(outputs[0])
                if not is_deleted_later and self._are_made(rule, outputs) and are_made_from(outputs[0], sources):
                    return {"used_up": str(work_folder() / "used_up" / outputs[0].name)}
            return inputs_of(job)

        return inputs

    def _are_made(self, rule: str, outputs: Sequence[Path]) -> bool:
        """Return whether all files of a rule are there, and the command does not name or force them."""
        settings = self.workflow.dag_settings
        files = {*with_indexes(outputs), *map(sidecar_of, outputs)}
        is_asked = not files.isdisjoint(map(Path, settings.targets))
        is_forced = settings.forceall or settings.forcerun or settings.forcetargets
        return not (is_asked or is_forced) and all(path.exists() for path in files)

    def delete_used_up(self) -> None:
        """Delete sources that no job will read: an earlier command was killed before it deleted them, or kept all sources."""
        if self.limit is None or self.workflow.touch or not is_main_process(self.workflow):
            return
        needed = {Path(file) for job in self.workflow.dag.needrun_jobs() for file in job.input}
        needed.update(map(Path, self.workflow.dag_settings.targets))
        for path in list_all_sources(self.seen) - needed:
            path.unlink(missing_ok=True)


def read_limit(given: Any) -> int | None:
    """Return the number of shards in Snakemake's configuration.

    >>> read_limit("2"), read_limit(None)
    (2, None)
    """
    if given is None:
        return None
    if not str(given).isdecimal() or int(str(given)) < 1:
        raise RelmError(
            f"--config {SHARDS_ON_DISK}={given}: expected a whole number from 1 on, such as {SHARDS_ON_DISK}=2; remove it "
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


def list_all_sources(paths: Iterable[Path]) -> set[Path]:
    """Return sources and, as far as their records say, the sources that they were made from."""
    found, left = set[Path](), set(paths)
    while left:
        path = left.pop()
        found.add(path)
        with contextlib.suppress(RelmError):  # a record is absent or damaged
            read = [expand_path(entry["path"]) for entry in read_record(record_of(path))["inputs"]]
            left |= {source for source in read if is_source(source)} - found
    return found
