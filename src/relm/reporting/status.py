"""The progress of a run, read from files alone."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from relm.artifact import sidecar_of
from relm.recipes.identity import is_source
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CURVE, LOG
from relm.reporting.check import describe_published
from relm.reporting.live_steps import LiveStep, is_locked, list_live_steps
from relm.reporting.stored_runs import read_newest_lines


def _stage(name: str, files: list[Path], live: Sequence[LiveStep]) -> str:
    used_up = sum(is_source(file) and not file.exists() and sidecar_of(file).exists() for file in files)
    done = used_up + sum(file.exists() for file in files)
    mark = "done" if done == len(files) else f"{done} of {len(files)}" if done else "left"
    if used_up:
        mark += f", {used_up} deleted after use; their sha256 is in the records that stayed"
    if done < len(files) and any(step.names_any(files) for step in live):
        mark = f"running, {mark}"
    return f"  {name:<12} {mark}"


def _phase_lines(plan: Plan, seed: str = "") -> Iterator[str]:
    for name, phase in plan.recipe.pretrain.items():
        folder = plan.run_folder / name
        lines = read_newest_lines(folder / LOG)
        last = lines[-1] if lines else {}
        if sidecar_of(plan.model_folder(name) / "model.safetensors").exists():
            mark = "done"
        elif is_locked(folder / "lock"):
            mark = "running"
        else:
            mark = "stopped; the same command resumes it" if last else "left"
        progress = f", step {last['step']:,.0f} of {phase.steps:,}" if last else ""
        loss = f", loss {last['loss']:.3f}" if "loss" in last else ""
        curve = f", {last[CURVE]['verdict']}" if CURVE in last else ""
        yield f"  pretrain     {seed}{name}: {mark}{progress}{loss}{curve}"


def describe_progress(plan: Plan) -> str:
    """Return the stages of a recipe, each done, running or left, and the next command; pretraining seed by seed."""
    runs = plan.runs
    phases = list(plan.examples_keys.values())
    examples = [path for phase in phases for path in plan.example_files(phase)]
    prepare = "import" if plan.dataset.is_tokenized else "pregenerate"
    live = list_live_steps()
    lines = [
        *(f"{plan.name}: fingerprint {run.fingerprint}, files in {run.run_folder}" for run in runs),
        *([_stage("download", [plan.download(shard) for shard in plan.shards], live)] if plan.dataset.files else []),
        *([_stage("extract", plan.document_files, live)] if plan.document_files else []),
        _stage("tokenizer", [plan.tokenizer], live),
        _stage(prepare, [*examples, *(plan.manifest(phase) for phase in phases)], live),
        *(line for run in runs for line in _phase_lines(run, f"seed {run.recipe.seed}, " if len(runs) > 1 else "")),
        _stage("evaluate", [path for run in runs for path in run.evaluations().values()], live),
        _stage("verify", [plan.verdict()], live),
        _stage("report", [plan.report_folder / "report.html"], live),
        _stage("publish", [plan.results / "report.html"], live),
        *([f"  check        {describe_published(plan)}"] if plan.results.is_dir() else []),
    ]
    return "\n".join(
        [
            *lines,
            f"next: snakemake {shlex.quote(str(plan.results))}"
            if not plan.results.is_dir()
            else f"look at {plan.results}/report.html",
        ]
    )
