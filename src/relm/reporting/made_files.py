"""The check of a run's files that no sidecar describes, before a page quotes them or they are published."""

from relm.provenance.step_record import require_as_made
from relm.recipes.plan import Plan
from relm.recipes.run_folder import DEVICE_FIGURES, RECORDS, WEIGHTS


def require_phases_as_made(plan: Plan) -> None:
    """Raise RelmError unless the logs and attestations of each phase are those that the record of its training lists."""
    for phase in plan.phases:
        for name in (*RECORDS, DEVICE_FIGURES):
            require_as_made(plan.run_folder / phase / name, first_output=plan.model_folder(phase) / WEIGHTS)
