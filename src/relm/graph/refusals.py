"""Faults of recipes and of this machine, reported together before the first job, in a dry-run as warnings."""

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake.logging import logger

from relm.artifact import sidecar_of
from relm.cluster import supervision
from relm.errors import RelmError
from relm.graph.asking import PROJECT, stop_at_faults
from relm.graph.environments import TrainingPlace, find_fault
from relm.graph.images import Images
from relm.graph.room import find_room_fault
from relm.graph.variations import pass_to_jobs, require_name
from relm.limits import find_folder_fault, find_path_fault, nearest_existing
from relm.provenance.container import container
from relm.recipes.evaluation.evaluations import HARNESS_TASKS
from relm.recipes.evaluation.task_trust import TRUST, find_trust_fault
from relm.recipes.identity import keep_hashes_in_memory, work_folder
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKPOINT_FILES, WEIGHTS

RESULT = re.compile(r"results/(?:reference/)?(?P<name>(?:smoke/)?[^/+]+(\+.+?)?)/?")


@stop_at_faults
def usable_work_folder() -> Path:
    """Return the work folder, for the patterns of the rules."""
    if fault := find_path_fault(work_folder()):
        raise RelmError(f"RELM_WORK: {fault}")
    return work_folder()


class Refusals:
    """The check of a graph before its first job, in the user's command and not in the jobs that it starts."""

    def __init__(self, workflow: Any, images: Images, shards_on_disk: int | None) -> None:
        """Check as soon as Snakemake has built its graph, before it pulls images or starts a job.

        Snakemake has no hook for this moment: `onstart` comes after the images, and not in a dry-run.
        """
        self.workflow, self.images, self.shards_on_disk = workflow, images, shards_on_disk
        if supervision.is_main_process(workflow):
            _require_checkout()
            self._build_graph = workflow._build_dag
            workflow._build_dag = self._build_checked_graph

    def _build_checked_graph(self) -> None:
        executes = self.workflow.executor_plugin is not None and not self.workflow.touch
        if executes:
            self.prepare()
        self._build_graph()
        if executes:
            pass_to_jobs(PROJECT.planned())
            self.require()

    @stop_at_faults
    def prepare(self) -> None:
        """End with all faults that are known without a graph: of recipes, and of a work folder that cannot be used."""
        folder_faults = self._find_folder_faults()
        if self.workflow.dryrun or folder_faults:
            keep_hashes_in_memory()
        if not self.workflow.dryrun and not folder_faults:
            supervision.clear_dead_locks()
        faults: list[str] = []
        for name in _requested(self.workflow.dag_settings.targets):
            try:
                require_name(name)
            except RelmError as error:
                faults.append(str(error))
        work = work_folder()
        existing = nearest_existing(work)
        can_be_searched = existing.is_dir() and os.access(existing, os.X_OK)
        is_usable = can_be_searched and os.path.exists(work) >= os.path.lexists(work)
        if faults or not is_usable:
            raise RelmError("\n".join(dict.fromkeys([*folder_faults, *faults])))

    @stop_at_faults
    def require(self) -> None:
        """End with everything that prevents the planned jobs; in a dry-run, which may be read anywhere, warn."""
        jobs = list(self.workflow.dag.needrun_jobs())
        faults = list(dict.fromkeys(self._find_faults(jobs)))
        if faults and not self.workflow.dryrun:
            raise RelmError("\n".join(faults))
        for fault in faults:
            logger.warning(f"{fault}. This is a dry-run; a run would stop here.")

    def _find_faults(self, jobs: list[Any]) -> Iterator[str]:
        """Yield the faults of the jobs: of folders, images, the disk, and each run to train."""
        if not jobs:
            return
        yield from self._find_folder_faults()
        asks_engine = not self.workflow.dryrun and not self._is_on_cluster
        yield from self.images.find_faults(jobs, here=not self._is_served, asks_engine=asks_engine)
        for name, phases in _phases_to_train(jobs).items():
            plan = PROJECT.plan(name)
            yield from find_lost_optimizers(plan, phases)
            yield from filter(None, [find_fault(plan, self._place)])
            yield from find_training_faults(plan, phases, self._place)
        yield from _find_untrusted_tasks(jobs)
        yield from _find_lost_names(jobs) if self._is_on_cluster else ()
        yield from filter(None, [find_room_fault(jobs, self.shards_on_disk)])

    def _find_folder_faults(self) -> list[str]:
        setting = "RELM_WORK" if os.environ.get("RELM_WORK") else "the work folder (RELM_WORK names another)"
        folders = {setting: work_folder(), "the folder of results": Path("results")}
        return [fault for name, folder in folders.items() if (fault := find_folder_fault(folder, name))]

    @property
    def _place(self) -> TrainingPlace:
        """The place of training: in images, which a service may run elsewhere; on a cluster; or here in this environment."""
        on_cluster = self._is_on_cluster
        executor = self.workflow.executor_plugin.name
        return TrainingPlace(
            uses_environment=not on_cluster and not self.images.requested,
            is_here=not on_cluster and not self._is_served,
            has_srun=on_cluster and not self.images.requested and executor in ("slurm", "dryrun"),
        )

    @property
    def _is_on_cluster(self) -> bool:
        """A dry-run has another executor; only its count of jobs shows that it is for a cluster."""
        settings = self.workflow.resource_settings
        return bool(not self.workflow.local_exec or (self.workflow.dryrun and settings.nodes is not None))

    @property
    def _is_served(self) -> bool:
        """A service, which may be on another machine, runs the images."""
        return bool(self.images.requested and (os.environ.get("DOCKER_HOST") or container() is not None))


def find_training_faults(plan: Plan, phases: Iterable[str], place: TrainingPlace) -> Iterator[str]:
    """Yield faults of loggers that are absent, of a model and its tokenizer, and of memory."""
    from relm.forecast.expected_tokenizer import vocabulary  # what it imports would slow down every start of Snakemake
    from relm.forecast.memory_verdict import find_memory_fault
    from relm.training.architecture import configuration
    from relm.training.loggers import find_missing_logger

    if place.uses_environment and (fault := find_missing_logger(plan.recipe.run.loggers)):
        yield f"{PROJECT.recipe_path(plan.name)}: {fault}"
    tokenizer, _ = vocabulary(plan)
    try:
        configuration(plan.recipe, tokenizer)
    except RelmError as error:
        yield f"{PROJECT.recipe_path(plan.name)}: {error}"
        return
    for phase in phases:
        yield from filter(None, [find_memory_fault(plan, phase, tokenizer, place.is_here)])


def find_lost_optimizers(plan: Plan, phases: Sequence[str]) -> Iterator[str]:
    """Yield a fault for each phase that keeps the optimizer of a trained phase whose last checkpoint is gone."""
    for phase in phases:
        before, kept = plan.phase_before(phase), plan.kept_optimizer(phase)
        if before is None or kept is None or before in phases:
            continue
        if lost := [kept / name for name in (*CHECKPOINT_FILES, "state.json") if not (kept / name).exists()]:
            yield (
                f"{plan.name}: phase {phase} continues with the optimizer of {lost[0]}, which is gone. Delete "
                f"{sidecar_of(plan.model_folder(before) / WEIGHTS)}; the same command then trains phase {before} again"
            )


def _find_untrusted_tasks(jobs: Iterable[Any]) -> Iterator[str]:
    """Yield why an evaluation may not run the project's task files for the harness, before days of training."""
    for job in jobs:
        if job.rule.name == "evaluate":
            plan = PROJECT.plan(job.wildcards.recipe)
            if "task_folder" in plan.evaluation(job.wildcards.task).inputs and HARNESS_TASKS.is_dir():
                yield from filter(
                    None, [find_trust_fault(HARNESS_TASKS, f"{TRUST}=1 snakemake {shlex.quote(str(plan.results))}")]
                )


def _find_lost_names(jobs: Iterable[Any]) -> Iterator[str]:
    """Yield a fault for each name with a comma: Snakemake 9.27 splits the wildcards of a remote job at commas."""
    for name in sorted({job.wildcards.recipe for job in jobs if "," in getattr(job.wildcards, "recipe", "")}):
        yield f"results/{name}: Snakemake cannot pass a comma to a job on a cluster; write such a variation into a recipe"


def _phases_to_train(jobs: Iterable[Any]) -> Mapping[str, list[str]]:
    """Return recipe -> its phases that are to be trained, in the order of training."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for job in jobs:
        if job.rule.name == "pretrain":
            wanted[job.wildcards.recipe].add(job.wildcards.phase)
    return {name: [phase for phase in PROJECT.plan(name).phases if phase in wanted[name]] for name in sorted(wanted)}


def _requested(targets: Iterable[str]) -> list[str]:
    """Return the runs whose results are requested by name."""
    found = [RESULT.fullmatch(str(target).removeprefix("./")) for target in targets]
    return list(dict.fromkeys(match["name"] for match in found if match and match["name"] not in ("smoke", "reference")))


@stop_at_faults
def _require_checkout() -> None:
    """Raise an error if Snakemake cannot write its records here, instead of its traceback."""
    if fault := find_folder_fault(supervision.STATE, "Snakemake's records"):
        raise RelmError(fault)
