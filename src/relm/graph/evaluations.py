"""What the rules of evaluate.smk ask: which weights are evaluated, on what, and how."""

import shlex
from pathlib import Path
from typing import Any

from relm.artifact import canonical_json, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.graph.asking import PROJECT, in_words, sha256_option, sidecars, strings
from relm.graph.data import sha256_of_key
from relm.graph.runs import plan_of_run
from relm.recipes.evaluations import OWN_DATA, PublishedTest
from relm.recipes.objectives import Objective
from relm.recipes.plan import BEFORE, REFERENCE, SPLITS, TRAINED, Plan
from relm.recipes.recipe import Phase

# Folder of the harness's task files that are one's own.
HARNESS_TASKS = Path("recipes/harness")


@in_words
def test_file_sha256(wildcards: Any) -> str:
    """Return the sha256 that the file of a published test must have."""
    return sha256_of_key(PROJECT.test_path(wildcards.test), PROJECT.test(wildcards.test).files, wildcards)


@in_words
def evaluated_model(wildcards: Any) -> list[str]:
    """The weights and their configuration: the trained ones, those before, or the authors'."""
    return strings(plan_of_run(wildcards).evaluated_model(wildcards.of))


@in_words
def evaluated_weights(wildcards: Any) -> str:
    """The weights alone."""
    return str(plan_of_run(wildcards).evaluated_model(wildcards.of)[0])


@in_words
def evaluated_sha256(wildcards: Any, resources: Any) -> str:
    """Return `--sha256 NAME=HASH ...` of weights that others published; their content is in the path of `evaluated_weights`.

    Snakemake holds what is asked of resources for no reason to evaluate again.
    """
    return sha256_option(plan_of_run(wildcards).evaluated_sha256(wildcards.of))


@in_words
def evaluated_sidecars(wildcards: Any) -> list[str]:
    """What stands for them."""
    return sidecars(_with_sidecars(plan_of_run(wildcards), wildcards.of))


def _with_sidecars(plan: Plan, of: str) -> list[Path]:
    """A trained model's configuration has no sidecar of its own: that of its weights names it."""
    weights, configuration = plan.evaluated_model(of)
    return [weights] if of == TRAINED else [weights, configuration]


def _last_phase(wildcards: Any) -> Phase:
    return list(plan_of_run(wildcards).recipe.pretrain.values())[-1]


@in_words
def device_option(wildcards: Any, resources: Any) -> str:
    """Where it is computed. Snakemake holds what is asked of resources for no reason to evaluate again."""
    return "--device cuda" if plan_of_run(wildcards).recipe.run.device == "cuda" else ""


@in_words
def how(wildcards: Any, resources: Any) -> str:
    """The same, and how many examples a smoke twin looks at."""
    limit = plan_of_run(wildcards).evaluation_limit
    return " ".join([device_option(wildcards, resources), *([f"--limit {limit}"] if limit else [])]).strip()


@in_words
def context_option(wildcards: Any) -> int:
    """Tokens of context in the evaluation: what the last phase trained on."""
    return _last_phase(wildcards).sequence_length


@in_words
def random_windows_options(wildcards: Any) -> str:
    """How many random windows are evaluated, and which."""
    options = plan_of_run(wildcards).recipe.random_windows
    return f"--batch-size {_last_phase(wildcards).global_batch_size} --batches {options.batches} --seed {options.seed}"


@in_words
def phase_settings(wildcards: Any) -> str:
    """`--settings JSON`: the objective of the last phase with all its options, as the command reads them."""
    keys = set(Objective.model_fields)
    settings = _last_phase(wildcards).model_dump(mode="json", include=keys, exclude_defaults=True)
    return f"--settings {shlex.quote(canonical_json(settings))}"


@in_words
def masked_lm_options(wildcards: Any) -> str:
    """Which masks, and how often they are drawn anew."""
    options = plan_of_run(wildcards).recipe.masked_lm
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in options.model_dump().items())


@in_words
def pseudo_perplexity_options(wildcards: Any) -> str:
    """How many examples."""
    return f"--examples {plan_of_run(wildcards).recipe.pseudo_perplexity.examples}"


@in_words
def diacritics_options(wildcards: Any) -> str:
    """How many texts."""
    examples = plan_of_run(wildcards).recipe.diacritics.examples
    return f"--examples {examples}" if examples else ""


@in_words
def run_language(wildcards: Any) -> str:
    """The language of the run's text."""
    return shlex.quote(plan_of_run(wildcards).dataset.language)


@in_words
def example_shards(wildcards: Any) -> list[str]:
    """The shards of the last phase's examples, both splits; the manifest stands for their content."""
    plan = plan_of_run(wildcards)
    return strings([plan.examples(plan.phases[-1], shard, split) for split in SPLITS for shard in plan.shards])


def _test(wildcards: Any) -> PublishedTest:
    return PROJECT.test(wildcards.test)


@in_words
def test_file(wildcards: Any) -> str:
    """The downloaded file of a published test."""
    return str(_test_file(wildcards))


@in_words
def test_sidecar(wildcards: Any) -> str:
    """What stands for it."""
    return str(sidecar_of(_test_file(wildcards)))


def _test_file(wildcards: Any) -> Path:
    plan = plan_of_run(wildcards)
    if wildcards.test not in plan.tests:
        known = ", ".join([*OWN_DATA, *plan.tests])
        raise RelmError(f"recipe {wildcards.recipe} evaluates no {wildcards.test}: give evaluate: [...] one of {known}")
    return plan.test_download(wildcards.test)


@in_words
def test_step(wildcards: Any) -> str:
    """The command of a published test's protocol."""
    return _test(wildcards).protocol


@in_words
def test_protocol(wildcards: Any) -> dict[str, Any]:
    """Return the scoring protocol of a test: an edited one evaluates again, a new option at its default does not."""
    return _test(wildcards).model_dump(mode="json", include={"protocol", "perplexity", "lambada"}, exclude_defaults=True)


@in_words
def harness_task(wildcards: Any) -> str:
    """The harness's own name of a task, quoted for the shell."""
    return shlex.quote(wildcards.task)


@in_words
def harness_task_files(wildcards: Any) -> dict[str, str]:
    """One's own task files, by content: edited ones evaluate again."""
    found = sorted(HARNESS_TASKS.rglob("*")) if HARNESS_TASKS.is_dir() else []
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(HARNESS_TASKS).as_posix(): sha256_of(path) for path in files}


@in_words
def harness_folder(wildcards: Any) -> str:
    """`--task-folder FOLDER` where there are task files of one's own."""
    return f"--task-folder {HARNESS_TASKS}" if HARNESS_TASKS.is_dir() else ""


@in_words
def evaluations(wildcards: Any) -> list[str]:
    """The figures of all tasks the recipe evaluates, of the trained model."""
    return strings(list(plan_of_run(wildcards).evaluations().values()))


@in_words
def evaluations_before(wildcards: Any) -> list[str]:
    """The same of the weights that training started from, where the recipe names some."""
    return strings(list(plan_of_run(wildcards).evaluations(BEFORE).values()))


@in_words
def reference_evaluations(wildcards: Any) -> list[str]:
    """The same of the authors' released weights."""
    plan = plan_of_run(wildcards)
    if plan.reference_model is None:
        raise RelmError(
            f"recipe {wildcards.recipe} names no weights of its authors; expect_reference: NAME, of a model in "
            "recipes/models/ with weights, would have them evaluated"
        )
    return strings(list(plan.evaluations(REFERENCE).values()))


@in_words
def published_reference(wildcards: Any) -> list[str]:
    """Everything that `results/reference/NAME` has."""
    plan = PROJECT.plan(wildcards.recipe)
    return [*reference_evaluations(wildcards), str(plan.run_folder / "verify_reference.json")]


@in_words
def reference_weights(wildcards: Any) -> str:
    """The authors' released weights."""
    return str(plan_of_run(wildcards).evaluated_model(REFERENCE)[0])
