"""What the rules of train.smk and report.smk ask: from examples to the published folder."""

import shlex
from pathlib import Path
from typing import Any

from relm.artifact import sha256_of, sidecar_of
from relm.devices import ranks
from relm.errors import RelmError
from relm.graph.asking import PROJECT, in_words, sidecars, strings
from relm.recipes.plan import Plan


def plan_of_run(wildcards: Any) -> Plan:
    plan = PROJECT.plan(wildcards.recipe)
    if hasattr(wildcards, "fingerprint") and plan.fingerprint != wildcards.fingerprint:
        raise RelmError(
            f"recipe {wildcards.recipe} now has fingerprint {plan.fingerprint}, asked for {wildcards.fingerprint}: "
            "was it edited while this ran? Give the same command again"
        )
    return plan


@in_words
def manifest(wildcards: Any) -> str:
    """The manifest of a phase's examples; in an evaluation, of the last phase's."""
    plan = plan_of_run(wildcards)
    return str(plan.manifest(getattr(wildcards, "phase", plan.phases[-1])))


@in_words
def shards(wildcards: Any) -> list[str]:
    """The training shards of a phase's examples; the manifest stands for their content, and a lost one is made again."""
    plan = plan_of_run(wildcards)
    return strings([plan.examples(wildcards.phase, shard, "train") for shard in plan.shards])


@in_words
def tokenizer(wildcards: Any) -> str:
    """The recipe's tokenizer."""
    return str(plan_of_run(wildcards).tokenizer)


@in_words
def starting_weights_sidecars(wildcards: Any) -> list[str]:
    """What stands for the starting weights."""
    return sidecars(plan_of_run(wildcards).starting_weights(wildcards.phase)[:1])


@in_words
def starting_weights(wildcards: Any) -> list[str]:
    """The starting weights and their configuration."""
    return strings(plan_of_run(wildcards).starting_weights(wildcards.phase))


@in_words
def start_options(wildcards: Any) -> str:
    """`--init-from FOLDER` where there are starting weights, and `--optimizer-from CHECKPOINT` where the optimizer is kept."""
    plan = plan_of_run(wildcards)
    files, kept = plan.starting_weights(wildcards.phase), plan.kept_optimizer(wildcards.phase)
    start = [f"--init-from {shlex.quote(str(files[0].parent))}"] if files else []
    return " ".join([*start, *([f"--optimizer-from {shlex.quote(str(kept))}"] if kept else [])])


@in_words
def processes(wildcards: Any) -> int:
    """How many processes train together."""
    return PROJECT.plan(wildcards.recipe).recipe.run.processes


@in_words
def compiled_for(wildcards: Any) -> dict[str, Any]:
    """What a recipe's programs follow from beside its fingerprint: an edited setting compiles anew and trains nothing."""
    from relm.forecast.compilation.compiling import topology_of

    plan = plan_of_run(wildcards)
    settings = plan.recipe.run.model_dump(mode="json", include={"micro_batch_size", "activation_checkpointing"})
    return {"topology": topology_of(plan, None), **settings}


@in_words
def trainer_threads(wildcards: Any) -> int:
    """CPU threads of the trainer, as the recipe fixes them, over all its processes."""
    run = PROJECT.plan(wildcards.recipe).recipe.run
    return run.threads * run.processes if run.threads else 1_000_000  # Snakemake scales it down to the cores there are


def launcher(wildcards: Any, resources: Any) -> str:
    """What starts the trainer. Snakemake holds what comes of resources for no reason to train again."""
    return shlex.join(ranks.launcher(resources.processes))


def _final_model(wildcards: Any) -> Path:
    plan = plan_of_run(wildcards)
    return plan.model_folder(plan.phases[-1]) / "model.safetensors"


@in_words
def final_model(wildcards: Any) -> str:
    """The weights of the last phase."""
    return str(_final_model(wildcards))


@in_words
def final_model_sidecar(wildcards: Any) -> str:
    """What stands for them."""
    return str(sidecar_of(_final_model(wildcards)))


@in_words
def judged(wildcards: Any) -> list[Any]:
    """What the verdict depends on beside the figures: an edited expectation judges again and trains nothing."""
    return [row.model_dump(mode="json") for row in plan_of_run(wildcards).recipe.expect]


@in_words
def described(wildcards: Any) -> dict[str, Any]:
    """What the report says beside the figures: edited words are reported again."""
    plan = plan_of_run(wildcards)
    words = plan.recipe.model_dump(mode="json", include={"title", "paper", "source", "deviations", "expect", "run"})
    named = [plan.dataset, plan.tokenizer_model, plan.init_model, *plan.tests.values()]
    compiled = {"compiled": sha256_of(plan.compilation)} if plan.compilation.is_file() else {}
    return {**words, "named": [part.model_dump(mode="json") if part else None for part in named], **compiled}


@in_words
def fingerprint(wildcards: Any) -> str:
    """What the recipe means now: `publish` refuses another run's files."""
    return PROJECT.plan(wildcards.recipe).fingerprint


@in_words
def published(wildcards: Any) -> dict[str, str]:
    """Every file that the report and the run give to `results/NAME`."""
    plan = PROJECT.plan(wildcards.recipe)
    folder = plan.run_folder
    return {
        "report": str(folder / "report" / "report.html"),
        "card": str(folder / "report" / "README.md"),
        "verdict": str(folder / "verify.json"),
        "model": str(sidecar_of(plan.model_folder(plan.phases[-1]) / "model.safetensors")),
    }
