"""`relm status`: the progress of a recipe, read from its files."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from relm.artifact import sidecar_of
from relm.formatting import format_row
from relm.recipes.identity import is_source
from relm.recipes.plan import Plan
from relm.reporting.check import describe_published
from relm.reporting.live_steps import LiveStep, list_live_steps
from relm.reporting.run_record import Requested, RunRecord


def describe_progress(plan: Plan) -> str:
    """Return the stages of a recipe, each done, running or left, and the next command."""
    runs = plan.runs
    phases = list(plan.examples_keys.values())
    examples = [path for phase in phases for path in plan.examples_jobs[phase].files()]
    prepare = "import" if plan.dataset.is_tokenized else "pregenerate"
    live = list_live_steps()
    is_published = plan.results.is_dir()
    lines = [
        *(f"{plan.name}: fingerprint {run.fingerprint}, files in {run.run_folder}" for run in runs),
        *(
            [_stage("download", [plan.documents_job.download(shard) for shard in plan.shards], live)]
            if plan.dataset.files
            else []
        ),
        *([_stage("extract", plan.document_files, live)] if plan.document_files else []),
        _stage("tokenizer", [plan.tokenizer], live),
        _stage(prepare, [*examples, *(plan.manifest(phase) for phase in phases)], live),
        *(line for run in runs for line in _phase_lines(run, f"seed {run.recipe.seed}, " if len(runs) > 1 else "")),
        _stage("evaluate", [path for run in runs for path in run.evaluations().values()], live),
        _stage("verify", [plan.verdict()], live),
        _stage("report", [plan.report_folder / "report.html"], live),
        _stage("publish", [plan.results / "report.html"], live),
        *([format_row("check", describe_published(plan))] if is_published else []),
        f"look at {plan.results}/report.html" if is_published else f"next: snakemake {shlex.quote(str(plan.results))}",
    ]
    return "\n".join(lines)


def _stage(name: str, files: list[Path], live: Sequence[LiveStep]) -> str:
    used_up = sum(is_source(file) and not file.exists() and sidecar_of(file).exists() for file in files)
    done = used_up + sum(file.exists() for file in files)
    mark = "done" if done == len(files) else f"{done} of {len(files)}" if done else "left"
    if used_up:
        mark += f", {used_up} deleted after use; their sha256 is in the records that stayed"
    if done < len(files) and any(step.names_any(files) for step in live):
        mark = f"running, {mark}"
    return format_row(name, mark)


def _phase_lines(plan: Plan, seed: str) -> Iterator[str]:
    run = RunRecord(plan.run_name, plan.fingerprint, plan.run_folder, plan.work, Requested([plan], exists=True))
    locked = run.locked_phase
    for phase in run.phases:
        if run.has_model(phase.name):
            mark = "done"
        elif phase.name == locked:
            mark = "running"
        else:
            mark = "stopped; the same command resumes it" if phase.last else "left"
        progress = f", {phase.describe(is_running=mark == 'running')}" if phase.last else ""
        yield format_row("pretrain", f"{seed}{phase.name}: {mark}{progress}")
