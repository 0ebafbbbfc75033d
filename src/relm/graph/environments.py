"""Why a run cannot be trained on a device: what this Python environment or this machine lacks, or the count of processes."""

from typing import NamedTuple

from relm.limits import OVERRIDE, limits_ignored, usable_cores
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, HOST, list_environments
from relm.recipes.plan import Plan

PROCESSES_OF_CORE = 4
"""Processes that may share one core of a CPU: more only wait for one another."""


class TrainingPlace(NamedTuple):
    """The place of training."""

    uses_environment: bool = True
    """True if it uses the packages of this Python environment; false for those of an image, or on a cluster."""
    is_here: bool = True
    """True if it is on this machine, with its accelerators, memory and cores."""
    has_srun: bool = False
    """True if Slurm runs it, outside of images, so that it may be on several hosts."""


def find_fault(plan: Plan, place: TrainingPlace) -> str | None:
    """Return a sentence on why a run cannot be trained on its device, or None."""
    name, run = plan.name, plan.recipe.run
    device = DEVICES[run.device]
    where = f"machine {run.machine}" if run.machine else f"run.device: {device.name}"
    if plan.process_hosts > 1 and not place.has_srun:
        return (
            f"{name}: {where} has {plan.process_hosts} hosts, on which only Slurm's srun starts processes, outside of images; "
            "add --workflow-profile profiles/slurm and omit --sdm, or choose a machine of one host"
        )
    if plan.process_hosts > 1 and run.checkpoints_to is not None:
        return f"{name}: run.checkpoints_to needs one host, and {where} has {plan.process_hosts}; remove the key"
    if place.uses_environment and device.lacks and (lack := load(device.lacks)()):
        remedy = f"; `make DEVICE={device.name} environment` makes one that can" if device.name in list_environments() else ""
        return f"{name}: this environment cannot train on {where}: {lack}{remedy}"
    if place.is_here and device.absent and (lack := load(device.absent)(run.processes)):
        return f"{name}: this machine cannot train on {where}: {lack}"
    most = PROCESSES_OF_CORE * usable_cores()
    if place.is_here and device.name == HOST and run.processes > most and not limits_ignored():
        return (
            f"{name}: run.processes is {run.processes:,}, and the {usable_cores()} cores of this machine can run {most:,} at "
            f"most; lower it, or set {OVERRIDE}=1 to try anyway"
        )
    return None
