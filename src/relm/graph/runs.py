"""Inputs and parameters of the rules in train.smk and report.smk, and the descriptive keys of what they write."""

import shlex
from collections.abc import Mapping
from typing import Any

from snakemake.io import ancient

from relm.artifact import sha256_of
from relm.devices import ranks
from relm.devices.ipu import instances
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, sidecars, strings
from relm.graph.variations import require_name
from relm.recipes.devices import DEVICES
from relm.recipes.plan import BEFORE, Plan
from relm.recipes.run_folder import MODEL_PARTS, REPORT_FILES, WEIGHTS


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


@report_faults
def training_inputs(wildcards: Any) -> dict[str, Any]:
    """Return the inputs of a phase; the manifest has the hashes of the shards, and a lost shard is made again."""
    plan, phase = plan_of_run(wildcards), wildcards.phase
    start = plan.starting_weights(phase)
    return {
        "manifest": str(plan.manifest(phase)),
        "shards": ancient(strings(plan.example_files(phase, "train"))),
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
def compiled_for(wildcards: Any) -> dict[str, Any]:
    """Return the settings that determine the compiled programs beside the fingerprint; editing one compiles again only."""
    from relm.forecast.compilation.compiling import topology_of

    plan = plan_of_run(wildcards)
    settings = plan.recipe.run.model_dump(mode="json", include={"micro_batch_size", "activation_checkpointing"})
    return {"topology": topology_of(plan), **settings}


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
def judged(wildcards: Any) -> list[Any]:
    """Return the expectations, on which the verdict depends beside the figures; editing one runs only `verify` again."""
    return [row.model_dump(mode="json") for row in plan_of_run(wildcards).recipe.expect]


@report_faults
def described(wildcards: Any) -> dict[str, Any]:
    """Return the descriptive keys in Croissant's file or in a report; editing one writes that file again, and nothing else."""
    if hasattr(wildcards, "dataset"):
        dataset = PROJECT.dataset(wildcards.dataset)
        words = dataset.model_dump(mode="json", include={"title", "licence", "homepage", "language"})
        return {**words, **({"published": dataset.published} if dataset.published else {})}
    plan = plan_of_run(wildcards)
    words = plan.recipe.model_dump(mode="json", include={"title", "paper", "source", "deviations", "expect", "run"})
    named = [plan.dataset, plan.tokenizer_model, plan.init_model, *plan.tests.values()]
    compiled = {"compiled": sha256_of(plan.compilation)} if plan.compilation.is_file() else {}
    if plan.recipe.expect_curve is not None:
        words["expect_curve"] = plan.recipe.expect_curve.model_dump(mode="json", exclude={"on_deviation"})
    return {**words, "named": [part.model_dump(mode="json") if part else None for part in named], **compiled}


@report_faults
def fingerprint(wildcards: Any) -> str:
    """Return the recipe's present fingerprint, with which `publish` refuses another run's files."""
    return PROJECT.plan(wildcards.recipe).fingerprint


@report_faults
def published(wildcards: Any) -> dict[str, Any]:
    """Return the files from which `results/NAME` is published, so that one that was deleted is made again.

    The logs of training, no rule's outputs, come with the model, see `side_products`.
    """
    plan = PROJECT.plan(wildcards.recipe)
    model = plan.model_folder(plan.phases[-1])
    figures = [path for run in plan.runs for path in run.evaluations().values()]
    return {
        "report": [str(plan.run_folder / "report" / name) for name in REPORT_FILES],
        "figures": strings([*figures, *plan.evaluations(BEFORE).values(), *plan.contamination().values()]),
        "verdict": str(plan.run_folder / "verify.json"),
        "sidecars": sidecars([run.model_folder(phase) / WEIGHTS for run in plan.runs for phase in plan.phases]),
        "model": ancient(strings([model / name for name in (WEIGHTS, *MODEL_PARTS)])),
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
