"""`masked_lm.examples: by_default`: models with and without an original's defects predict the same held-out tokens."""

import pytest

from relm.recipes.identity import evaluated_phase
from relm.recipes.jobs import ExamplesJob
from relm.recipes.project import Project
from small_project import CHECKOUT

WITH_DEFECTS = ["defects_unk_for_mask", "defects_words_in_part", "defects_masked"]


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(CHECKOUT)


def test_all_are_evaluated_on_the_examples_that_relm_builds(project: Project) -> None:
    plans = [project.plan(name) for name in WITH_DEFECTS]
    evaluated = [plan.evaluated_examples("masked_lm") for plan in plans]
    assert len({job.key for job in evaluated}) == 1
    assert len({plan.examples_jobs["main"].key for plan in plans}) == len(plans)
    assert "as_published" not in evaluated[0].document
    for plan, job in zip(plans, evaluated, strict=True):
        keys = [each.key for each in plan.data_jobs if isinstance(each, ExamplesJob)]
        assert keys == [plan.examples_jobs["main"].key, job.key]
        assert "as_published" not in plan.evaluation_identity("masked_lm")["phase"]
    assert len({str(plan.evaluation_identity("masked_lm")) for plan in plans}) == 1


def test_a_job_of_these_examples_is_found_by_its_key(project: Project) -> None:
    job = project.plan("defects_masked").evaluated_examples("masked_lm")
    assert Project(CHECKOUT).find_job(ExamplesJob, job.key, "tinyshakespeare").document == job.document


def test_by_default_an_evaluation_reads_the_examples_of_the_last_phase(project: Project) -> None:
    plan = project.plan("bert_tiny_ipu")
    assert plan.evaluated_examples("masked_lm") is plan.examples_jobs["phase_1"]
    assert plan.evaluation_identity("masked_lm")["phase"]["as_published"]["builder"] == "graphcore_bert"


def test_what_is_trained_is_the_same_with_either(project: Project) -> None:
    plan = project.plan("defects_unk_for_mask")
    other = plan.recipe.model_copy(update={"masked_lm": type(plan.recipe.masked_lm)()})
    assert evaluated_phase(other, "masked_lm") is other.pretrain["main"]
    assert evaluated_phase(plan.recipe, "masked_lm").as_published is None
