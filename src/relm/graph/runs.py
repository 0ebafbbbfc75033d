"""Inputs and parameters of the rules in train.smk and report.smk."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from relm.devices import ranks
from relm.devices.ipu import instances
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, sidecars, strings, with_indexes
from relm.graph.variations import require_name
from relm.plan.products import find_maker, published_files
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.recipes.run_folder import WEIGHTS


def plan_of_run(wildcards: Any) -> Plan:
    """Return the plan of the recipe that a path names or, of several seeds, of the run with the path's fingerprint.

    Raises:
        RelmError: the recipe has no run with the path's fingerprint, or a result's name is another spelling of the run's.
    """
    plan = PROJECT.plan(wildcards.recipe)
    if not hasattr(wildcards, "fingerprint"):
        require_name(wildcards.recipe)
        return plan
    run = plan.find_run(wildcards.fingerprint)
    if run is None:
        raise RelmError(
            f"recipe {wildcards.recipe} now has fingerprint {plan.fingerprint}, requested was {wildcards.fingerprint}: "
            "was it edited during the run? Give the same command again"
        )
    return run


def require_key(path: Path | None, wildcards: Any, of: str = "") -> None:
    """Raise RelmError unless the folder of a product has the key that a path names.

    Args:
        path: the product's path now; None: nothing makes it.
        wildcards: those of the path that is requested.
        of: what makes the product, for the message; empty: the recipe.
    """
    if path is None or path.parent.name != wildcards.key:
        raise RelmError(
            f"{of or f'recipe {wildcards.recipe}'} now makes {path}, requested was key {wildcards.key}: was a recipe edited "
            "during the run? Give the same command again"
        )


@report_faults
def training_inputs(wildcards: Any) -> dict[str, Any]:
    """Return the inputs of a phase; the manifest has the hashes of the shards, and a lost shard is made again."""
    plan, phase = plan_of_run(wildcards), wildcards.phase
    start = plan.starting_weights(phase)
    return {
        "manifest": str(plan.manifest(phase)),
        "shards": ancient(strings(with_indexes(plan.example_files(phase, "train")))),
        "tokenizer": ancient(str(plan.tokenizer)),
        "start_sidecar": sidecars(start[:1]),
        "start": ancient(strings(start)),
    }


@report_faults
def start_options(wildcards: Any) -> str:
    """Return `--init-from FOLDER` if there are starting weights, `--optimizer-from CHECKPOINT` if the optimizer is kept."""
    plan = plan_of_run(wildcards)
    files, kept = plan.starting_weights(wildcards.phase), plan.kept_optimizer(wildcards.phase)
    start = [f"--init-from {shlex.quote(str(files[0].parent))}"] if files else []
    return " ".join([*start, *([f"--optimizer-from {shlex.quote(str(kept))}"] if kept else [])])


@report_faults
def trainer_threads(wildcards: Any) -> int:
    """Return the CPU threads of the trainer, as the recipe fixes them, over all its processes."""
    run = PROJECT.plan(wildcards.recipe).recipe.run
    return run.threads * run.processes if run.threads else 1_000_000  # Snakemake scales it down to the cores there are


def launcher(wildcards: Any, resources: Any) -> str:
    """Return the command that starts the trainer; as it depends on resources, Snakemake does not train again if it changes."""
    run = PROJECT.plan(wildcards.recipe).recipe.run
    if run.pipeline is not None and run.pipeline.instances > 1 and DEVICES[run.device].simulator is not None:
        return shlex.join(instances.launcher(run.pipeline))
    return shlex.join(ranks.launcher(resources.processes))


@report_faults
def fingerprint(wildcards: Any) -> str:
    """Return the recipe's present fingerprint, with which `publish` refuses another run's files."""
    return PROJECT.plan(wildcards.recipe).fingerprint


def list_published(plan: Plan) -> dict[str, Any]:
    """Return the files from which `results/NAME` is published, so that one that was deleted is made again."""
    files = published_files(plan, only_required=True)
    trained = [path for name, path in files.items() if find_maker(name)[0] == "pretrain"]
    return {
        "derived": strings([path for path in files.values() if path not in trained]),
        "sidecars": sidecars([run.model_folder(phase) / WEIGHTS for run in plan.runs for phase in run.phases]),
        "trained": ancient(strings([path for path in trained if path.suffixes != [".safetensors", ".json"]])),
    }


def find_seed(wildcards: Mapping[str, str]) -> int | None:
    """Return the seed of the run that a job trains or evaluates, if its recipe has several; None otherwise."""
    if "recipe" not in wildcards or not wildcards.keys() & {"phase", "task"}:
        return None
    try:
        runs = PROJECT.plan(wildcards["recipe"]).runs
        seeds = {run.fingerprint: run.recipe.seed for run in runs}
    except RelmError:  # the job itself reports it
        return None
    return seeds.get(wildcards.get("fingerprint", "")) if len(runs) > 1 else None
