"""Resources that a training or evaluation job requests from a cluster, from the recipe, its machine and the estimate.

The names are those of Slurm's executor plugin for Snakemake; `gpu` is for the profiles of other executors, and Slurm's plugin
rejects it together with `gres`. On a single computer Snakemake only shows them, unless `--resources` states the amounts.
They decide no product, so nothing runs again when they change.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults
from relm.graph.default_requests import (
    CORES,
    CORES_OF_ACCELERATOR,
    DISK_MB,
    LONGEST,
    MEMORY_MB,
    MEMORY_MB_OF_ACCELERATOR,
    RUNTIME,
    SHARE_OF_HOST,
    SMALL_MEMORY_MB,
    START,
    count_megabytes,
)
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.evaluation.evaluation_place import evaluation_device
from relm.recipes.plan import Plan


def training_request(resource: str) -> Callable[..., Any]:
    """Return the function of a rule's wildcards that returns a resource of a training job, such as gres or mem_mb."""
    return report_faults(_OF_TRAINING[resource])


def evaluation_request(resource: str) -> Callable[..., Any]:
    """Return the function of a rule's wildcards that returns a resource of an evaluation."""
    return report_faults(_OF_EVALUATION[resource])


def _accelerators_of_host(plan: Plan) -> int:
    """Return the number of accelerators on each host; 0 for a CPU."""
    if plan.recipe.run.device == HOST:
        return 0
    if plan.machine is None:
        return plan.recipe.run.processes
    return -(-plan.machine.device_count // plan.machine.host_count)


def _gres(wildcards: Any) -> str | None:
    """Return Slurm's request for the accelerators of each host, such as gpu:8; None for a device that needs none."""
    plan = PROJECT.plan(wildcards.recipe)
    name = DEVICES[plan.recipe.run.device].gres
    return f"{name}:{_accelerators_of_host(plan)}" if name else None


def _hosts(wildcards: Any) -> int:
    """Return the number of hosts."""
    plan = PROJECT.plan(wildcards.recipe)
    return plan.machine.host_count if plan.machine else 1


def _tasks_of_host(wildcards: Any) -> int:
    """Return the number of tasks that srun starts on each host: one process each; 1 where a single host starts its own."""
    plan = PROJECT.plan(wildcards.recipe)
    return plan.recipe.run.processes // plan.process_hosts if plan.process_hosts > 1 else 1


def _cores(wildcards: Any) -> int:
    """Return the CPU cores of each task: those that the recipe fixes, or a default for each accelerator of its host."""
    plan = PROJECT.plan(wildcards.recipe)
    run, accelerators = plan.recipe.run, _accelerators_of_host(plan)
    fixed = run.threads * -(-run.processes // _hosts(wildcards)) if run.threads else None
    return (fixed or max(CORES, CORES_OF_ACCELERATOR * accelerators)) // _tasks_of_host(wildcards)


def _memory(wildcards: Any) -> int:
    """Return the main memory of each host in MB: most of what the machine states, or a default for each accelerator.

    On a CPU at least the memory of the training state and of activations.
    """
    plan = PROJECT.plan(wildcards.recipe)
    if plan.machine is not None and plan.machine.host_memory_gib is not None:
        return int(SHARE_OF_HOST * plan.machine.host_memory_gib * 1024)
    needed = count_megabytes(_main_memory_bytes(wildcards)) if DEVICES[plan.recipe.run.device].in_main_memory else 0
    return max(MEMORY_MB, MEMORY_MB_OF_ACCELERATOR * _accelerators_of_host(plan), needed)


def _main_memory_bytes(wildcards: Any) -> int:
    """Return the estimated bytes of main memory of each host for a phase's processes; 0 if the recipe describes no model."""
    # Imported here, because they would slow down every start of Snakemake.
    from relm.training.arithmetic import activation_bytes, sequences_per_device, state_bytes

    plan, config = PROJECT.plan(wildcards.recipe), _find_configuration(wildcards.recipe)
    phase, run = plan.recipe.pretrain[wildcards.phase], plan.recipe.run
    if config is None:
        return 0
    activations = activation_bytes(config, phase, run, sequences_per_device(phase, run)) or 0
    return run.processes // plan.process_hosts * (state_bytes(config, phase.optimizer).total + activations)


def _disk(wildcards: Any) -> int:
    """Return the disk space of a phase's checkpoints and model in MB, or a default if the recipe describes no model."""
    from relm.training.arithmetic import disk_bytes

    plan = PROJECT.plan(wildcards.recipe)
    config = _find_configuration(wildcards.recipe)
    if config is None:
        return DISK_MB
    return count_megabytes(disk_bytes(config, plan.recipe.pretrain[wildcards.phase], plan.recipe.run).total)


@functools.cache
def _find_configuration(recipe: str) -> Any:
    """Return the configuration of a run's model; None if the recipe describes none, which is reported elsewhere."""
    from relm.forecast.expected_tokenizer import vocabulary
    from relm.training.architecture import configuration

    plan = PROJECT.plan(recipe)
    try:
        return configuration(plan.recipe, vocabulary(plan)[0])
    except RelmError:
        return None


def _runtime(wildcards: Any) -> int:
    """Return the minutes of a phase at the lowest share of the machine's peak that `relm estimate` shows, or a default.

    A job that takes longer is stopped; the next one resumes from its checkpoint.
    """
    hours = _estimated_hours(wildcards)
    return RUNTIME if hours is None else min(math.ceil(60 * hours) + START, LONGEST)


def _estimated_hours(wildcards: Any) -> float | None:
    """Return the estimated hours of a phase; None if no peak is published, or the recipe describes no model."""
    from relm.forecast.machine_figures import SHARES, PhaseWork, hours_at_peak
    from relm.training.arithmetic import operations

    plan = PROJECT.plan(wildcards.recipe)
    phase, run, machine = plan.recipe.pretrain[wildcards.phase], plan.recipe.run, plan.machine
    if machine is None or (config := _find_configuration(wildcards.recipe)) is None:
        return None
    hours = hours_at_peak([PhaseWork(phase, operations(config, phase, run).hardware)], machine, run.float32_matmul_precision)
    return None if hours is None else hours / SHARES[0]


def _evaluation_gres(wildcards: Any) -> str | None:
    """Return Slurm's request for the one accelerator of an evaluation; None on a CPU, or if it reads only the log."""
    plan = PROJECT.plan(wildcards.recipe)
    name = DEVICES[evaluation_device(plan, wildcards.task)].gres
    return f"{name}:1" if name and not plan.evaluation(wildcards.task).reads_only_log else None


def _evaluation_cores(wildcards: Any) -> int:
    """Return the CPU cores of an evaluation: one if it reads only the log."""
    return 1 if PROJECT.plan(wildcards.recipe).evaluation(wildcards.task).reads_only_log else CORES


def _evaluation_accelerators(wildcards: Any) -> int:
    """Return the number of accelerators that an evaluation takes: 0 if no weights are scored."""
    return 0 if PROJECT.plan(wildcards.recipe).evaluation(wildcards.task).reads_only_log else 1


def _evaluation_memory(wildcards: Any) -> int:
    """Return the main memory of an evaluation in MB: a little if it reads only the log, else at least twice the weights.

    Where it fine-tunes, gradients and two moments are added to the weights, and as much again for activations.
    """
    plan = PROJECT.plan(wildcards.recipe)
    declaration = plan.evaluation(wildcards.task)
    if declaration.reads_only_log:
        return SMALL_MEMORY_MB
    copies = 8 if declaration.fine_tunes else 2
    least = MEMORY_MB_OF_ACCELERATOR if _evaluation_gres(wildcards) else MEMORY_MB
    return max(least, SMALL_MEMORY_MB + copies * _weights_mb(wildcards.recipe))


@functools.cache
def _weights_mb(recipe: str) -> int:
    """Return the size of a run's weights in MB, in float32; 0 if the recipe describes no model."""
    from relm.models.counting import FLOAT
    from relm.training.arithmetic import parameter_count

    config = _find_configuration(recipe)
    return 0 if config is None else count_megabytes(FLOAT * parameter_count(config))


def _evaluation_runtime(wildcards: Any) -> int:
    """Return the minutes of an evaluation: few if it reads only the log, most if it fine-tunes, else a default.

    Fine-tuning that takes longer is stopped; the next job resumes from its checkpoint.
    """
    declaration = PROJECT.plan(wildcards.recipe).evaluation(wildcards.task)
    if declaration.reads_only_log:
        return START
    return LONGEST if declaration.fine_tunes else RUNTIME


def _training_accelerators(wildcards: Any) -> int:
    """Return 1, so that one phase trains at a time; 0 on a CPU where the recipe fixes the threads, which Snakemake counts."""
    run = PROJECT.plan(wildcards.recipe).recipe.run
    return 0 if run.device == HOST and run.threads else 1


def _processes(wildcards: Any) -> int:
    """Return the number of processes that train together."""
    return PROJECT.plan(wildcards.recipe).recipe.run.processes


def _srun_request(name: str) -> Callable[[Any], Any]:
    """Return the function of a resource that only a job on several hosts requests.

    Slurm's plugin takes `tasks_per_node` from 2 on. To `tasks` it adds --ntasks-per-gpu for GPUs, unless `tasks_per_gpu` is 0.
    """

    def request(wildcards: Any) -> Any:
        plan, tasks = PROJECT.plan(wildcards.recipe), _tasks_of_host(wildcards)
        if plan.process_hosts == 1:
            return None
        each = {"tasks_per_node": tasks} if tasks > 1 else {"tasks": plan.process_hosts, "tasks_per_gpu": 0}
        return {"mpi": "srun", **each}.get(name)

    return request


def _count_gpus(gres: str | None) -> int | None:
    """Return the count in a request such as gpu:8; None without one.

    >>> _count_gpus("gpu:8"), _count_gpus(None)
    (8, None)
    """
    return int(gres.partition(":")[2]) if gres else None


_OF_TRAINING: dict[str, Callable[[Any], Any]] = {
    "accelerator": _training_accelerators,
    "processes": _processes,
    "gres": _gres,
    "gpu": lambda wildcards: _count_gpus(_gres(wildcards)),
    "nodes": _hosts,
    **{name: _srun_request(name) for name in ("mpi", "tasks", "tasks_per_node", "tasks_per_gpu")},
    "cpus_per_task": _cores,
    "mem_mb": _memory,
    "disk_mb": _disk,
    "runtime": _runtime,
}
_OF_EVALUATION: dict[str, Callable[[Any], Any]] = {
    "accelerator": _evaluation_accelerators,
    "gres": _evaluation_gres,
    "gpu": lambda wildcards: _count_gpus(_evaluation_gres(wildcards)),
    "cpus_per_task": _evaluation_cores,
    "mem_mb": _evaluation_memory,
    "runtime": _evaluation_runtime,
}
