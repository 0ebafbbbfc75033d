"""The command that compares a run's start with its original before it is paid for."""

from pathlib import Path

from relm.recipes.run_name import RunName
from relm.steps.contract import FINGERPRINT, RECIPE, Arguments, Job, Step, plan_of


def verify_start_job(a: Arguments) -> Job:
    from relm.forecast.start_comparison import describe_start

    plan = plan_of(a)
    run = RunName.parse(plan.name)
    name = str(run._replace(machine=None))  # smoke/NAME has no original, so no file
    return Job(lambda: describe_start(plan, Path("recipes", "starts", f"{name}.yaml")))


STEPS: dict[str, Step] = {
    "verify-start": Step(
        "compare a recipe's initial weights, order of sequences and learning rates with the original's, before it is paid for",
        [RECIPE, FINGERPRINT],
        verify_start_job,
        records=False,
        epilog="The original's figures are in recipes/starts/NAME.yaml; no data are needed. Where the examples are there, the "
        "loss of the first batch is compared as well. Exits with 1 where something differs, with its name.",
        group="forecast",
    ),
}
