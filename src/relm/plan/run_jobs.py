"""The jobs of a run: training, evaluations, verdict, report and published folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import record_of, sidecar_of
from relm.plan.data_jobs import list_data_jobs
from relm.plan.jobs import RecipeJob, Words, flags, sha256_flag
from relm.plan.products import find_maker, published_files
from relm.recipes.devices import HOST
from relm.recipes.evaluation.evaluation_place import evaluation_device, tuning_pipeline
from relm.recipes.evaluation.evaluations import HARNESS_TASKS
from relm.recipes.jobs import with_indexes
from relm.recipes.plan import BEFORE, REFERENCE, TRAINED, Plan
from relm.recipes.run_folder import MODEL_PARTS, WEIGHTS, final_logs
from relm.recipes.run_name import is_execution


def _begin_command(step: str, plan: Plan, name: str = "") -> list[str]:
    """Return the first words of a step that plans the recipe again and checks its fingerprint."""
    return [step, name or plan.run_name, "--fingerprint", plan.fingerprint]


def _list_settings(plan: Plan) -> list[str]:
    """Return `--set run.KEY=VALUE ...`, for steps that read how a run is executed."""
    return [word for change in plan.changes if is_execution(change.setting) for word in ("--set", change.setting)]


def pretrain(plan: Plan, phase: str) -> RecipeJob:
    """Return the job that trains a phase."""
    start, kept = plan.starting_weights(phase), plan.kept_optimizer(phase)
    words = [*_begin_command("pretrain", plan), "--phase", phase, *flags({"manifest": plan.manifest(phase)})]
    words += flags({"tokenizer": plan.tokenizer, "init_from": [start[0].parent] if start else []})
    output = plan.model_folder(phase) / WEIGHTS
    words += [*flags({"optimizer_from": [kept] if kept else []}), *_list_settings(plan), "--output", output]
    return RecipeJob(
        words,
        {"model": output},
        hashed={"start": start[:1]},
        recorded={"manifest": [plan.manifest(phase)]},
        listed={
            "shards": with_indexes(plan.examples_jobs[phase].files("train")),
            "tokenizer": [plan.tokenizer],
            "start_configuration": start[1:],
        },
        run=plan.recipe.run,
        hosts=plan.process_hosts,
    )


def evaluate(plan: Plan, of: str, task: str) -> RecipeJob:
    """Return the job of an evaluation of trained (`eval`), starting (`before`) or released (`reference`) weights."""
    declaration, output = plan.evaluation(task), plan.evaluations(of)[task]
    weights, configuration = plan.evaluated_model(of)
    hashed, listed = {"model": [weights]}, _list_model_parts([weights])
    if of != TRAINED:
        hashed["model"], listed = [weights, configuration], {}
    recorded, options = dict[str, Sequence[Path]](), list[Any]()
    if declaration.reads_only_log:
        run, listed["logs"] = plan.recipe.run, plan.logs
        options = [*flags({"logs": plan.logs}), "--trained-on", *filter(None, (run.device, run.topology))]
    else:
        if "manifest" in declaration.inputs:
            examples = plan.evaluated_examples(task)
            recorded["manifest"], listed["shards"] = [examples.manifest], with_indexes(examples.files())
        if "tokenizer" in declaration.inputs:
            listed["tokenizer"] = [plan.tokenizer]
        tests = plan.test_downloads(task) if declaration.is_protocol else {}
        hashed |= {name: [file] for name, file in tests.items()}
        test = plan.tests.get(task)
        expected = {**plan.evaluated_sha256(of), **(test.sha256 if test else {})}
        named = {**recorded, "tokenizer": listed.get("tokenizer", []), **tests}
        options = [*sha256_flag(expected), *flags(named), *_list_execution_options(plan, task)]
    described = ["--job", plan.evaluation_identity(task), "--model", weights]
    words = [declaration.command, *described, *options, "--output", output]
    return RecipeJob(words, {"figures": output}, hashed, recorded=recorded, listed=listed)


def _list_model_parts(weights: Sequence[Path]) -> dict[str, Sequence[Path]]:
    """Return the other files of trained models, whose hashes are in the sidecars of their weights."""
    return {"parts": [path.with_name(name) for path in weights for name in MODEL_PARTS]}


def _list_execution_options(plan: Plan, task: str) -> Words:
    """Return the options of an evaluation other than files: the device, its pipeline, and the number of examples."""
    declaration, device, pipeline = plan.evaluation(task), evaluation_device(plan, task), tuning_pipeline(plan, task)
    has_folder = "task_folder" in declaration.inputs and HARNESS_TASKS.is_dir()
    options: list[Any] = ["--task-folder", str(HARNESS_TASKS)] if has_folder else []
    options += ["--device", device] if device != HOST else []
    if pipeline is not None:
        options += ["--pipeline", pipeline.model_dump(mode="json", exclude_defaults=True)]
    return options + (["--limit", str(plan.evaluation_limit)] if declaration.takes_limit and plan.evaluation_limit else [])


def verify(plan: Plan, of: str = TRAINED) -> RecipeJob:
    """Return the job of the verdict on the trained weights of all seeds, or on the authors' released ones."""
    read, output = _list_judged(plan, of), plan.verdict(of)
    reference = ["--reference"] if of == REFERENCE else []
    words = [*_begin_command("verify", plan), *reference, *flags({**read, "output": output})]
    # Released weights have a key in their path; trained ones may change, and with them the hash in their sidecar.
    weights = {"model": read.pop("model")}
    return RecipeJob(
        words,
        {"verdict": output},
        hashed=weights if of == TRAINED else {},
        recorded=read,
        listed=weights if of == REFERENCE else _list_model_parts(weights["model"]),
    )


def _list_judged(plan: Plan, of: str) -> dict[str, Sequence[Path]]:
    """Return the weights and figures of a verdict; of trained weights those of each seed."""
    runs = plan.runs if of == TRAINED else (plan,)
    evaluations = [path for run in runs for path in run.evaluations(of).values()]
    return {"model": [run.evaluated_model(of)[0] for run in runs], "evaluations": evaluations}


def report(plan: Plan) -> RecipeJob:
    """Return the job that writes the report and what is published with it."""
    weights, output = _list_judged(plan, TRAINED), plan.report_folder / "report.html"
    read = {
        "verify": [plan.verdict()],
        "evaluations": weights.pop("evaluations"),
        "before": list(plan.evaluations(BEFORE).values()),
    }
    words = [*_begin_command("report", plan), *flags(read), *_list_settings(plan), "--output", output]
    logs = [path for run in plan.runs for phase in run.phases for path in final_logs(run.run_folder / phase).values()]
    return RecipeJob(
        words, {"report": output}, weights, recorded=read, listed={**_list_model_parts(weights["model"]), "logs": logs}
    )


def list_records(plan: Plan) -> Iterator[Path]:
    """Yield the records that a report follows from a run's figures back to its downloads.

    Where the examples are finished and the record of a step before them is absent, somebody deleted it with its documents.
    Leave it out; the report names it. Nothing should be extracted again only for a record.
    """
    has_examples = all(plan.manifest(phase).is_file() for phase in plan.phases)
    data = (record_of(job.makes) for job in list_data_jobs(plan))
    yield from (path for path in data if not has_examples or path.is_file())
    for run in plan.runs:
        yield from (record_of(run.model_folder(phase) / WEIGHTS) for phase in run.phases)
        yield from map(record_of, run.evaluations().values())
    yield record_of(plan.verdict())


def publish(plan: Plan, of: str = TRAINED) -> RecipeJob:
    """Return the job that copies a run's files to `results/NAME`, or those of released weights to `results/reference/NAME`."""
    if of == REFERENCE:
        output, words = plan.reference_results, _begin_command("publish", plan, plan.published_name)
        read = {"verdict": [plan.verdict(of)], "evaluations": list(plan.evaluations(of).values())}
        return RecipeJob([*words, "--reference", *_list_settings(plan), "--output", output], {"folder": output}, recorded=read)
    files = published_files(plan, only_required=True)
    trained = [path for name, path in files.items() if find_maker(name)[0] == "pretrain"]
    weights = [run.model_folder(phase) / WEIGHTS for run in plan.runs for phase in run.phases]
    return RecipeJob(
        [*_begin_command("publish", plan, plan.published_name), *_list_settings(plan), "--output", plan.results],
        {"folder": plan.results},
        dated={"derived": [path for path in files.values() if path not in trained], "hashes": list(map(sidecar_of, weights))},
        listed={"trained": [path for path in trained if path.suffixes != [".safetensors", ".json"]]},
    )


def compile_programs(plan: Plan) -> RecipeJob:
    """Return the job that compiles a run's programs for a TPU, without one."""
    words: Words = [*_begin_command("compile", plan), *_list_settings(plan), "--output", plan.compilation]
    return RecipeJob(words, {"compilation": plan.compilation})


def list_jobs(plan: Plan) -> Iterator[RecipeJob]:
    """Yield the jobs that make a run's published folder, in the order of the data flow, as if nothing were there."""
    jobs = (*list_data_jobs(plan), *_list_run_jobs(plan))
    yield from {job.makes: job for job in jobs}.values()


def _list_run_jobs(plan: Plan) -> Iterator[RecipeJob]:
    for run in plan.runs:
        yield from (pretrain(run, phase) for phase in run.phases)
    yield from (evaluate(plan, BEFORE, task) for task in plan.evaluations(BEFORE))
    yield from (evaluate(run, TRAINED, task) for run in plan.runs for task in run.evaluations())
    yield verify(plan)
    yield report(plan)
