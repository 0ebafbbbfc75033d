"""Steps from figures to the published folder."""

from collections.abc import Sequence
from pathlib import Path

from relm.recipes.plan import REFERENCE as AUTHORS
from relm.steps.contract import FINGERPRINT, RECIPE, Arguments, Job, Step, argument, path, plan_of

REFERENCE = argument(
    "--reference", action="store_true", help="use the weights that the authors released (expect_reference in the recipe)"
)


def _by_task(files: Sequence[Path]) -> dict[str, Path]:
    return {file.stem: file for file in files if not file.name.endswith(".record.json")}


def verify_job(a: Arguments) -> Job:
    from relm.reporting.verify import verify

    plan = plan_of(a)
    fingerprint = None if a.reference else plan.fingerprint
    expected = plan.evaluated_sha256(AUTHORS).get("model.safetensors") if a.reference and plan.reference_model else None
    return Job(
        lambda: verify(plan.recipe, fingerprint, _by_task(a.evaluations), a.model, a.output),
        inputs=[a.model, *a.evaluations],
        outputs=[a.output],
        expected_sha256={a.model: expected} if expected else {},
    )


def report_job(a: Arguments) -> Job:
    from relm.reporting.publish import REPORT_FILES
    from relm.reporting.report import write_report

    plan = plan_of(a)
    beside = [a.output.with_name(name) for name in REPORT_FILES if name != a.output.name]
    return Job(
        lambda: write_report(plan, a.verify, _by_task(a.evaluations), a.output.parent, _by_task(a.before)),
        inputs=[a.verify, *a.evaluations, *a.before],
        outputs=[a.output, *beside],
    )


def publish_job(a: Arguments) -> Job:
    from relm.reporting.publish import publish_run
    from relm.reporting.reference import publish_reference

    plan = plan_of(a)
    if a.reference:
        return Job(lambda: publish_reference(plan, a.output or plan.reference_results))
    return Job(lambda: publish_run(plan, a.output or plan.results))


STEPS: dict[str, Step] = {
    "verify": Step(
        "compare the figures with the published ones and write a verdict",
        [
            RECIPE,
            FINGERPRINT,
            REFERENCE,
            path("--model", "MODEL/model.safetensors"),
            argument("--evaluations", type=Path, nargs="*", default=[], metavar="PATH", help="eval/TASK.json files"),
            path("--output", "verify.json"),
        ],
        verify_job,
    ),
    "report": Step(
        "write the report page, the model card and the provenance",
        [
            RECIPE,
            FINGERPRINT,
            path("--verify", "verify.json"),
            argument("--evaluations", type=Path, nargs="*", default=[], metavar="PATH", help="eval/TASK.json files"),
            argument("--before", type=Path, nargs="*", default=[], metavar="PATH", help="the same for the starting weights"),
            path("--output", "report.html; the other files go beside it"),
        ],
        report_job,
    ),
    "publish": Step(
        "link the finished files into results/NAME, complete or not at all",
        [RECIPE, FINGERPRINT, REFERENCE, path("--output", "default: results/NAME", required=False)],
        publish_job,
        records=False,
    ),
}
