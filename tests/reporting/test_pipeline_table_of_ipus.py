"""The report of a run through a pipeline has a table of its IPUs."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from relm.artifact import record_of, write_sidecar
from relm.recipes.project import Project
from relm.reporting.findings import gather
from relm.reporting.pipeline import report_pipeline
from relm.reporting.report import report_page
from small_project import CHECKOUT
from small_tokenizers import save_words


@pytest.mark.parametrize("name", ["gpt2_large_1024_pod16", "bert_large_pod64", "bert_tiny_ipu", "smoke/gpt2_small_pod16"])
def test_every_pipeline_of_a_recipe_can_be_reported(name: str) -> None:
    plan = Project(CHECKOUT).plan(name)
    assert list(report_pipeline(plan)) == list(plan.phases)


def test_ipus_have_their_stages_in_the_order_of_execution() -> None:
    titles, *rows = report_pipeline(Project(CHECKOUT).plan("gpt2_small_pod16"))["main"].table
    assert [row[:3] for row in rows] == [
        ["0", "1: token embedding; 5: head", "38,608,896"],
        ["1", "2: position embedding, layers 0-3", "29,137,920"],
        ["2", "3: layers 4-7", "28,351,488"],
        ["3", "4: layers 8-11", "28,353,024"],
    ]
    assert {len(row) for row in rows} == {len(titles)}


@pytest.mark.parametrize("through_pipeline", [True, False])
def test_the_page_of_a_run_through_a_pipeline_has_its_table(
    finished_run: Callable[..., Any], recipe: Callable[..., Any], through_pipeline: bool
) -> None:
    pipeline = {"layers_per_ipu": [1, 1], "gradient_accumulation": 8}
    phase = {"objective": "causal", "sequence_length": 64, "global_batch_size": 8, "steps": 50}
    pretrain = {"main": {**phase, "optimizer": {"learning_rate": 0.001}}}
    given = {"run": {"device": "ipu_simulator", "pipeline": pipeline}} if through_pipeline else {}
    run = finished_run(recipe(pretrain=pretrain, **given))
    write_sidecar(save_words(run.plan.tokenizer, ["a", "b"], ["<|endoftext|>"], "<|endoftext|>"))
    record_of(run.plan.tokenizer).unlink()  # it is of the tokenizer before
    text = report_page(gather(run.plan, run.verify, run.evaluations))
    assert text.count('<section id="pipeline">') == through_pipeline
    if through_pipeline:
        section = text.partition('<section id="pipeline">')[2].partition("</section>")[0]
        assert len(re.findall(r'<tr><td class="number">\d</td>', section)) == 2
        assert "1 replica of 2 IPUs, 3 forward stages" in section
        assert "relm's simulator of a pipeline computed this run on a CPU" in section
