"""`results/reference/NAME`: the figures of the authors' released weights, from the code that judges our own run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.plan.products import published_files
from relm.provenance.step_record import require_as_made
from relm.recipes.plan import REFERENCE, Plan
from relm.reporting.figures import measured_task
from relm.reporting.findings import headline_of
from relm.reporting.pages import template
from relm.reporting.publish import publish
from relm.reporting.result_files import read_evaluation, read_verdict

PAGE = "README.md"


def publish_reference(plan: Plan, folder: Path) -> str:
    """Write the page of the reference, and publish it with the verdict and the figures."""
    if plan.reference_model is None:
        raise RelmError(f"recipe {plan.name}: expect_reference is not set; name the authors' released weights there")
    files = published_files(plan, in_reference=True)
    for name, path in files.items():
        if name != PAGE:
            require_as_made(path)
    evaluations = {task: read_evaluation(path) for task, path in plan.evaluations(REFERENCE).items()}
    with atomic_file(files[PAGE], "w") as file:
        file.write(reference_page(plan, read_verdict(files["verify.json"]), evaluations))
    return publish(files, folder)


def reference_page(plan: Plan, verdict: Mapping[str, Any], evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page as Markdown."""
    assert plan.reference_model is not None
    return template("reference.md").render(
        plan=plan,
        model=plan.reference_model,
        headline=headline_of(verdict["verdict"], verdict["rows"])[0],
        verdict=verdict,
        tasks=[measured_task(task, found, None) for task, found in evaluations.items()],
    )
