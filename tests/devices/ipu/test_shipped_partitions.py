"""Every shipped pipeline divides its model as the estimate of memory counts it."""

import pytest
import torch
from pipeline_cases import whole_model

from relm.devices.ipu.partition import ipus_of_parameters
from relm.devices.ipu.schedule import stages_of
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.pipeline_memory import pipeline_memory
from relm.models.configuration import Configuration
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.training.architecture import configuration
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
RUNS = sorted(path.stem for path in (CHECKOUT / "recipes").glob("*.yaml") if "\n    pipeline:" in path.read_text())


def config_of(plan: Plan) -> Configuration:
    return configuration(plan.recipe, vocabulary(plan)[0])


def test_the_shipped_pipelines_are_found() -> None:
    assert {"gpt2_small_pod16", "gpt2_large_poprun_pod64", "bert_tiny_ipu", "bert_large_pod64"} <= set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_the_models_parameters_lie_where_the_estimate_of_memory_counts_them(name: str) -> None:
    plan = PROJECT.plan(name)
    config = config_of(plan)
    with torch.device("meta"):
        model = whole_model(config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    for phase_name, phase in plan.recipe.pretrain.items():
        assert plan.recipe.run.pipeline is not None
        pipeline = plan.recipe.run.pipeline.of_phase(phase_name)
        assert len(stages_of(pipeline.placement)) == pipeline.stages
        found = [0] * pipeline.ipus_per_replica
        for parameter, ipu in ipus_of_parameters(model.segments(), pipeline.placement).items():
            found[ipu] += sizes[parameter]
        assert found == [ipu.parameters for ipu in pipeline_memory(config, phase, pipeline)]
