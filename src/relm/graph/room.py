"""Disk space that the jobs of a graph need in the work folder, as far as it is known before they run."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.graph.asking import PROJECT
from relm.graph.data_requests import requested_file
from relm.limits import find_disk_fault
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan


class Need(NamedTuple):
    """Bytes that will be written."""

    what: str
    size: int
    is_shard: bool = False
    """A dataset's file, which may be deleted after use."""


def find_room_fault(jobs: Iterable[Any], shards_on_disk: int | None = None) -> str | None:
    """Return why the disk is too small for the jobs that are to be done; None if it may be large enough.

    Downloads count without what has arrived of them, checkpoints without those that are there. Documents and examples, whose
    size is not known yet, do not count.

    Of datasets, the largest `shards_on_disk` files count; None: all.
    """
    found = [need for job in jobs for need in _needs_of(job)]
    shards = sorted((need for need in found if need.is_shard), key=lambda need: need.size, reverse=True)
    needs = [*shards[:shards_on_disk], *(need for need in found if not need.is_shard)]
    parts = {what: sum(need.size for need in needs if need.what == what) for what in dict.fromkeys(need.what for need in needs)}
    listed = ", ".join(f"{what} {format_bytes(size)}" for what, size in parts.items() if size)
    return find_disk_fault(work_folder(), sum(parts.values()), listed)


def _needs_of(job: Any) -> Iterator[Need]:
    if job.rule.name in ("download_data", "download_model", "download_test"):
        destination = Path(job.output.file)
        part = destination.with_name(f".{destination.name}.part")
        arrived = part.stat().st_size if part.exists() else 0
        yield Need("downloads", max(requested_file(job.wildcards).largest_size - arrived, 0), job.rule.name == "download_data")
    if job.rule.name == "pretrain":
        yield from _training_needs(PROJECT.plan(job.wildcards.recipe), job.wildcards.phase)


def _training_needs(plan: Plan, phase: str) -> Iterator[Need]:
    from relm.forecast.expected_tokenizer import vocabulary  # what it imports would slow down every start of Snakemake
    from relm.training.architecture import configuration
    from relm.training.arithmetic import missing_disk

    try:
        config = configuration(plan.recipe, vocabulary(plan)[0])
    except RelmError:  # reported as another fault
        return
    checkpoints, model = missing_disk(config, plan.recipe.pretrain[phase], plan.recipe.run, plan.run_folder / phase)
    yield Need("checkpoints (run.keep_checkpoints)", checkpoints)
    yield Need("models", model)
