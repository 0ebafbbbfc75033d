"""The check of a run's files that no sidecar describes, before a page quotes them or they are published."""

from relm.provenance.step_record import require_as_made
from relm.recipes.plan import Plan
from relm.recipes.run_folder import DEVICE_FIGURES, REPORT_FILES, WEIGHTS, final_logs


def require_phases_as_made(plan: Plan) -> None:
    """Raise RelmError unless the logs and attestations of each phase are those that the record of its training lists."""
    for phase in plan.phases:
        folder = plan.run_folder / phase
        for path in (*final_logs(folder).values(), folder / DEVICE_FIGURES):
            require_as_made(path, first_output=plan.model_folder(phase) / WEIGHTS)


def require_report_as_made(plan: Plan) -> None:
    """Raise RelmError unless the files of the report are those that its record lists."""
    for name in REPORT_FILES:
        require_as_made(plan.report_folder / name, first_output=plan.report_folder / "report.html")
