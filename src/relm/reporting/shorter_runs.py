"""Finished runs of the same recipe with fewer steps, which a longer run does not extend: it says so before it trains."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from relm.recipes.phase import Phase
from relm.recipes.plan import Plan
from relm.recipes.run_folder import WEIGHTS
from relm.recipes.run_name import RunName
from relm.reporting.run_record import RunRecord, find_runs


def describe_shorter_run(plan: Plan) -> str | None:
    """Return a notice on the longest finished run that differs from a plan's by fewer steps or phases; None without one.

    None too if the plan's own run has begun, since it resumes. A `decay_end` may differ as well, which moves with the steps.
    """
    if any(plan.run_folder.glob("*/checkpoints/step-*")) or any(plan.run_folder.glob(f"*/model/{WEIGHTS}")):
        return None
    own = RunName.parse(plan.run_name)
    others = (run for run in find_runs(plan.work) if run.fingerprint != plan.fingerprint)
    stored = [run for run in others if RunName.parse(run.name)[:2] == own[:2]]
    shorter = [(run, phases) for run in stored if (phases := _find_fewer_steps(plan, run)) is not None]
    if not shorter:
        return None
    run, phases = max(shorter, key=lambda found: _count_steps(found[1]))
    model = run.folder / list(phases)[-1] / "model"
    return (
        f"{plan.run_name}: trains from step 0, because a finished run is not extended: {run.folder} is the same run with "
        f"{_count_steps(phases)} of {_count_steps(plan.recipe.pretrain)} steps. To go on from its weights instead, describe "
        f"{model} in recipes/models/, and name it by init_from in a recipe with the further steps (docs/training.md#more-steps)"
    )


def _count_steps(phases: Mapping[str, Phase]) -> int:
    return sum(phase.steps for phase in phases.values())


def _find_fewer_steps(plan: Plan, run: RunRecord) -> dict[str, Phase] | None:
    """Return the phases of a finished run with fewer steps or phases, which is the plan's run in all else; None for another."""
    recorded = (run.resolved or {}).get("recipe", {}).get("pretrain")
    if not isinstance(recorded, Mapping) or not recorded or list(recorded) != plan.phases[: len(recorded)]:
        return None
    if not all(map(run.has_model, recorded)):
        return None
    phases = {name: _shorten(plan.recipe.pretrain[name], recorded[name]) for name in recorded}
    found = {name: phase for name, phase in phases.items() if phase is not None}
    if len(found) < len(phases) or found == plan.recipe.pretrain:
        return None
    recipe = plan.recipe.model_copy(update={"pretrain": found})
    return found if dataclasses.replace(plan, recipe=recipe).fingerprint == run.fingerprint else None


def _shorten(phase: Phase, recorded: Any) -> Phase | None:
    """Return a phase with the recorded steps and end of decay; None if they are more steps, or no numbers."""
    try:
        steps, end = recorded["steps"], recorded["schedule"]["decay_end"]
    except (KeyError, TypeError):
        return None
    if not isinstance(steps, int) or not isinstance(end, int | None) or steps > phase.steps:
        return None
    return phase.model_copy(update={"steps": steps, "schedule": phase.schedule.model_copy(update={"decay_end": end})})
