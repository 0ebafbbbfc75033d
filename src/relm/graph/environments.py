"""Refusal of a run whose device this Python environment lacks, before its data are made."""

from typing import Any

from snakemake.logging import logger

from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, stop_at_faults
from relm.graph.runs import plan_of_run, training_inputs
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, list_environments
from relm.recipes.plan import Plan
from relm.recipes.run_folder import WEIGHTS


def find_fault(plan: Plan, elsewhere: bool = False) -> str | None:
    """Return a sentence on why a run cannot be trained, or None.

    Args:
        elsewhere: its training does not use this environment, but an image or another computer.
    """
    device = DEVICES[plan.recipe.run.device]
    place = f"machine {plan.recipe.run.machine}" if plan.recipe.run.machine else f"run.device: {device.name}"
    if plan.machine is not None and device.one_process_each and plan.machine.host_count > 1:
        return (
            f"{plan.name}: {place} has {plan.machine.host_count} hosts, and a job starts its processes on one alone; run it on "
            "a machine of one host"
        )
    lack = load(device.lacks)() if device.lacks and not elsewhere else None
    if lack is None:
        return None
    environment = plan.machine.environment_name if plan.machine else device.name
    remedy = f"; `make DEVICE={environment} environment` makes one that can" if environment in list_environments() else ""
    return f"{plan.name}: this environment cannot train on {place}: {lack}{remedy}"


class Environments:
    """The comparison of this Python environment with the devices of the runs that are to be trained."""

    def __init__(self, workflow: Any, in_images: bool) -> None:
        """Store Snakemake's workflow, and whether steps run in images, which have their own packages."""
        self.workflow, self.in_images = workflow, in_images
        self._warned: set[str] = set()

    @property
    def _elsewhere(self) -> bool:
        """Return True if training does not use this environment: in an image, or submitted to a cluster."""
        return self.in_images or not self.workflow.local_exec

    @report_faults
    def training_inputs(self, wildcards: Any) -> dict[str, Any]:
        """Return the inputs of a phase; a dry-run, which may be read anywhere, warns if this environment cannot train it."""
        plan = plan_of_run(wildcards)
        if self.workflow.dryrun and plan.name not in self._warned and not _is_trained(plan, wildcards.phase):
            self._warned.add(plan.name)
            if fault := find_fault(plan, self._elsewhere):
                logger.warning(f"{fault}. This is a dry-run; a run would be refused.")
        return training_inputs(wildcards)

    @stop_at_faults
    def require(self) -> None:
        """Raise an error if a training job is to be done whose device this environment lacks; called before the first job.

        Raises:
            SystemExit: says which environment can train the run.
        """
        if not is_main_process(self.workflow):
            return
        names = {job.wildcards.recipe for job in self.workflow.dag.needrun_jobs() if job.rule.name == "pretrain"}
        faults = [fault for name in sorted(names) if (fault := find_fault(PROJECT.plan(name), self._elsewhere))]
        if faults:
            raise RelmError("\n".join(faults))


def _is_trained(plan: Plan, phase: str) -> bool:
    return plan.results.exists() or (plan.model_folder(phase) / WEIGHTS).exists()
