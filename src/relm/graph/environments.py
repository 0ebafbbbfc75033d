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


def find_fault(plan: Plan, place: TrainingPlace) -> str | None:
    """Return a sentence on why a run cannot be trained on its device, or None."""
    name, run, machine = plan.name, plan.recipe.run, plan.machine
    device = DEVICES[run.device]
    where = f"machine {run.machine}" if run.machine else f"run.device: {device.name}"
    if machine is not None and device.one_process_each and machine.host_count > 1:
        return (
            f"{name}: {where} has {machine.host_count} hosts, and a job starts its processes on one alone; run it on "
            "a machine of one host"
        )
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
