"""Inputs and parameters of the rules in evaluate.smk: the identity of an evaluation, its inputs and its options."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from relm.artifact import canonical_json, sidecar_of
from relm.errors import RelmError
from relm.graph.asking import report_faults, sha256_option, sidecars, stop_at_faults, strings
from relm.graph.runs import plan_of_run
from relm.recipes.devices import HOST
from relm.recipes.evaluations import HARNESS_TASKS
from relm.recipes.plan import BEFORE, REFERENCE, TRAINED, Plan

# Inputs that `relm evaluate` takes as one file each.
FILES = ("manifest", "tokenizer", "training_file", "file", "mismatched_file")


@report_faults
def evaluated_weights(wildcards: Any) -> str:
    """Return the weights that are evaluated."""
    return str(plan_of_run(wildcards).evaluated_model(wildcards.of)[0])


def _with_sidecars(plan: Plan, of: str) -> list[Path]:
    """Return the evaluated files whose sidecars are inputs; that of trained weights includes their configuration's hash."""
    weights, configuration = plan.evaluated_model(of)
    return [weights] if of == TRAINED else [weights, configuration]


@report_faults
def evaluation_job(wildcards: Any) -> str:
    """Return the identity of an evaluation as JSON; if it changes, Snakemake runs the evaluation again."""
    return canonical_json(plan_of_run(wildcards).evaluation_identity(wildcards.task))


@report_faults
def evaluation_inputs(wildcards: Any) -> dict[str, Any]:
    """Return the files that an evaluation reads, and the sidecars whose changes run it again.

    Large files are `ancient`, because their content counts and not their time; sidecars or the manifest have their hashes.
    """
    plan = plan_of_run(wildcards)
    declaration = plan.evaluation(wildcards.task)
    inputs = {
        "sidecars": sidecars(_with_sidecars(plan, wildcards.of)),
        "model": ancient(strings(plan.evaluated_model(wildcards.of))),
    }
    if "manifest" in declaration.inputs:
        examples = plan.evaluated_examples(wildcards.task)
        inputs |= {"manifest": str(examples.manifest), "shards": ancient(strings(examples.files()))}
    if "tokenizer" in declaration.inputs:
        inputs["tokenizer"] = ancient(str(plan.tokenizer))
    if declaration.is_protocol:
        files = plan.test_downloads(wildcards.task)
        inputs["file_sidecar"] = [str(sidecar_of(file)) for file in files.values()]
        inputs |= {name: ancient(str(file)) for name, file in files.items()}
    return inputs


@report_faults
def evaluation_options(wildcards: Any, input: Any, resources: Any) -> str:
    """Return the options of `relm evaluate` for the files it reads, their required hashes, and the device.

    Snakemake does not run a job again because of parameters that depend on inputs and resources.
    """
    plan = plan_of_run(wildcards)
    declaration = plan.evaluation(wildcards.task)
    if declaration.reads_log_alone:
        run = plan.recipe.run
        return shlex.join(["--logs", *strings(plan.logs), "--trained-on", *filter(None, (run.device, run.topology))])
    names = set(input.keys())
    read = [word for name in FILES if name in names for word in (f"--{name.replace('_', '-')}", input[name])]
    folder = ["--task-folder", str(HARNESS_TASKS)] if "task_folder" in declaration.inputs and HARNESS_TASKS.is_dir() else []
    limit = ["--limit", str(plan.evaluation_limit)] if declaration.takes_limit and plan.evaluation_limit else []
    found = plan.evaluation_device(wildcards.task)
    device = [] if found == HOST else ["--device", found]
    if (pipeline := plan.tuning_pipeline(wildcards.task)) is not None:
        device += ["--pipeline", canonical_json(pipeline.model_dump(mode="json", exclude_defaults=True))]
    return " ".join(
        filter(None, [sha256_option(_expected_sha256(plan, wildcards)), shlex.join([*read, *folder, *device, *limit])])
    )


def _expected_sha256(plan: Plan, wildcards: Any) -> dict[str, str]:
    """Return file name -> sha256 of published weights, and of a published test's files."""
    test = plan.tests.get(wildcards.task)
    return {**plan.evaluated_sha256(wildcards.of), **(test.sha256 if test else {})}


@report_faults
def evaluations_before(wildcards: Any) -> list[str]:
    """Return the figures of the weights that training started from, if the recipe names some."""
    return strings(list(plan_of_run(wildcards).evaluations(BEFORE).values()))


def judged_inputs(of: str) -> Callable[[Any], dict[str, Any]]:
    """Return the input function, for `unpack`, of a verdict on some weights: trained (eval) or released (reference).

    It returns the figures of all evaluations of the weights, and the weights; of trained ones those of each seed.
    """

    @report_faults
    def inputs(wildcards: Any) -> dict[str, Any]:
        plan = plan_of_run(wildcards)
        if of == REFERENCE:
            # The key of released weights is in their path; trained ones may be made again, with another hash in their sidecar.
            return {"evaluations": _reference_evaluations(plan), "model": ancient(str(plan.evaluated_model(of)[0]))}
        weights = [run.evaluated_model(of)[0] for run in plan.runs]
        evaluations = [path for run in plan.runs for path in run.evaluations(of).values()]
        return {
            "evaluations": strings(evaluations),
            "sidecar": sidecars(weights),
            "model": ancient(strings(weights)),
        }

    return inputs


def _reference_evaluations(plan: Plan) -> list[str]:
    if plan.reference_model is None:
        raise RelmError(
            f"recipe {plan.name} names no weights of its authors; set expect_reference to the name of a model in "
            "recipes/models/ with weights"
        )
    return strings(list(plan.evaluations(REFERENCE).values()))


@stop_at_faults
def published_reference(wildcards: Any) -> list[str]:
    """Return the files from which `results/reference/NAME` is published."""
    plan = plan_of_run(wildcards)
    return [*_reference_evaluations(plan), str(plan.run_folder / "verify_reference.json")]
