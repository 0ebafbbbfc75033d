"""`relm status` without a name: what runs now in the work folder, with step, loss, rate and time left."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from relm.formatting import format_duration
from relm.recipes.project import Project
from relm.reporting.live_steps import LiveStep, list_live_steps, read_lock_owner
from relm.reporting.stored_runs import PhaseProgress, StoredRun, find_stored_runs, requested_runs, steps_of


def describe_running(project: Project, work: Path) -> str:
    """Return a paragraph for each trainer and a line for each other step that works in a work folder on this machine."""
    live = list_live_steps()
    training = [run for run in find_stored_runs(work) if run.locked_phase is not None]
    lines = [line for run in training for line in _training_lines(project, run)]
    trainers = {read_lock_owner(lock) for run in training for lock in run.locks}
    lines += [line for step in live if step.pid not in trainers for line in _step_lines(step, work, training)]
    if not lines:
        return f"nothing runs in {work} on this machine; `relm runs` lists its runs, `relm status NAME` the steps of one recipe"
    return "\n".join(lines)


def _training_lines(project: Project, run: StoredRun) -> Iterator[str]:
    phases = run.phases(steps_of(run, requested_runs(project, run.name)))
    locked = run.locked_phase
    phase = next((each for each in phases if each.name == locked), PhaseProgress(str(locked), {}, None, None))
    number = next((f" ({index} of {len(phases)})" for index, each in enumerate(phases, 1) if each.name == locked), "")
    pid = read_lock_owner(run.folder / phase.name / "lock")
    yield f"{run.name}  {run.fingerprint}: pretrain {phase.name}{number if len(phases) > 1 else ''}, process {pid or 'unknown'}"
    yield f"  {describe_phase(phase)}"


def describe_phase(phase: PhaseProgress) -> str:
    """Return step, loss, rate and time left of a phase that is trained now.

    >>> line = {"step": 50, "loss": 3.91, "tokens_per_second": 13884.2}
    >>> describe_phase(PhaseProgress("main", line, 0.5, 200))
    'step 50 of 200, 25 %, loss 3.910, 13,884 tokens/s, about 1 min 15 s left'
    """
    if not phase.last:
        return "step 0, before the first line of its log"
    parts = [f"step {phase.step:,}"]
    if phase.steps:
        parts = [f"step {phase.step:,} of {phase.steps:,}", f"{100 * phase.step // phase.steps} %"]
    if "loss" in phase.last:
        parts.append(f"loss {phase.last['loss']:.3f}")
    if "tokens_per_second" in phase.last:
        parts.append(f"{phase.last['tokens_per_second']:,.0f} tokens/s")
    if phase.seconds_left is not None:
        parts.append(f"about {format_duration(phase.seconds_left)} left")
    return ", ".join(parts)


def _step_lines(step: LiveStep, work: Path, training: Sequence[StoredRun]) -> Iterator[str]:
    """Yield a line on a step that names files of the work folder; further processes of a trainer are left out."""
    files = step.paths_in(work)
    is_rank = step.name == "pretrain" and any(step.paths_in(run.folder) for run in training)
    if files and not is_rank:
        shown = os.path.join(work, os.path.relpath(files[0], work))
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"{step.name}: {shown}{more}, process {step.pid}, for {format_duration(max(0.0, time.time() - step.started))}"
