"""The job of an evaluation says everything that its figures depend on."""

from pathlib import Path

import pytest

from relm.recipes.evaluation.evaluation_job import EvaluationJob
from relm.recipes.evaluation.evaluations import EVALUATIONS
from relm.recipes.project import Project
from relm.recipes.section import validate


def test_the_job_of_every_shipped_evaluation_is_one_that_the_command_takes(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    jobs = []
    for plan in map(Project().plan, Project().names()):
        for task in plan.evaluations():
            job = validate(EvaluationJob, plan.evaluation_identity(task), checkout)
            assert job.arguments(checkout)["task"] == task
            jobs.append(job.evaluation)
    assert set(jobs) >= {"held_out", "random_windows", "samples", "masked_lm", "diacritics", "training"}
    assert set(jobs) <= set(EVALUATIONS.names)
