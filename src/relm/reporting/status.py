"""The progress of a run, read from files alone."""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from relm.artifact import sidecar_of
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CURVE, LOG


def _last_line(path: Path) -> dict[str, Any]:
    """Return the newest complete line of a phase's train.jsonl."""
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
    return dict(json.loads(lines[-1])) if lines else {}


def _is_locked(path: Path) -> bool:
    """Return True if a trainer holds the lock of a run folder."""
    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _is_being_made(files: list[Path]) -> bool:
    """Return True if a step that runs on this machine names one of these files in its command, from its own folder."""
    wanted = {os.path.abspath(file) for file in files}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command, folder = process.info["cmdline"] or [], process.info["cwd"]
        if folder and "relm" in command and any(os.path.normpath(os.path.join(folder, word)) in wanted for word in command):
            return True
    return False


def _stage(name: str, files: list[Path]) -> str:
    done = sum(file.exists() for file in files)
    mark = "done" if done == len(files) else f"{done} of {len(files)}" if done else "left"
    if mark != "done" and _is_being_made(files):
        mark = f"running, {mark}"
    return f"  {name:<12} {mark}"


def _phase_lines(plan: Plan) -> Iterator[str]:
    for name, phase in plan.recipe.pretrain.items():
        folder = plan.run_folder / name
        last = _last_line(folder / LOG)
        if sidecar_of(plan.model_folder(name) / "model.safetensors").exists():
            mark = "done"
        elif _is_locked(folder / "lock"):
            mark = "running"
        else:
            mark = "stopped; the same command resumes it" if last else "left"
        progress = f", step {last['step']:,.0f} of {phase.steps:,}, loss {last['loss']:.3f}" if last else ""
        curve = f", {last[CURVE]['verdict']}" if CURVE in last else ""
        yield f"  pretrain     {name}: {mark}{progress}{curve}"


def describe_progress(plan: Plan) -> str:
    """Return the stages of a recipe, each done, running or left, and the next command."""
    phases = list(plan.examples_keys.values())
    examples = [path for phase in phases for path in plan.example_files(phase)]
    prepare = "import" if plan.dataset.is_tokenized else "pregenerate"
    lines = [
        f"{plan.name}: fingerprint {plan.fingerprint}, files in {plan.run_folder}",
        *([_stage("download", [plan.download(shard) for shard in plan.shards])] if plan.dataset.files else []),
        *([_stage("extract", plan.document_files)] if plan.document_files else []),
        _stage("tokenizer", [plan.tokenizer]),
        _stage(prepare, [*examples, *(plan.manifest(phase) for phase in phases)]),
        *_phase_lines(plan),
        _stage("evaluate", list(plan.evaluations().values())),
        _stage("verify", [plan.run_folder / "verify.json"]),
        _stage("report", [plan.run_folder / "report" / "report.html"]),
        _stage("publish", [plan.results / "report.html"]),
    ]
    return "\n".join(
        [*lines, f"next: snakemake {plan.results}" if not plan.results.is_dir() else f"look at {plan.results}/report.html"]
    )
