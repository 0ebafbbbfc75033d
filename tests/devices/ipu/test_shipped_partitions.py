"""Every shipped pipeline divides its model, and computes with it what the whole model computes."""

import dataclasses

import pytest
import torch
from pipeline_cases import assert_close, call, random_weights, train_whole, whole_model

from relm.devices.ipu.backend import WorkerSpec
from relm.devices.ipu.partition import ipus_of_parameters
from relm.devices.ipu.schedule import stages_of
from relm.devices.ipu.simulator import SimulatorBackend
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.pipeline_memory import pipeline_memory
from relm.models.bert_configuration import BertConfig
from relm.models.configuration import Configuration
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.optimization import Optimizer
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


@pytest.mark.parametrize("name", [name for name in RUNS if not name.endswith("_generated")])
def test_loss_and_gradients_through_the_twins_pipeline_equal_the_whole_models(name: str) -> None:
    """With the twin's layers, but narrow and without dropout; the generated data's runs have the same pipelines."""
    plan = PROJECT.plan(f"smoke/{name}")
    assert plan.recipe.run.pipeline is not None
    config = narrow(config_of(plan))
    for phase_name, phase in plan.recipe.pretrain.items():
        built = spec_of(config, phase.optimizer, plan.recipe.run.pipeline.of_phase(phase_name))
        backend = SimulatorBackend(built)
        zeros = {key: torch.zeros_like(tensor) for key, tensor in backend.save()[1].items()}
        backend.load(random_weights(config), zeros)
        scale = built.pipeline["loss_scaling"]["scale"]
        given = call(config, built, loss_scale=scale)
        losses = backend.take(given).losses
        whole = train_whole(config, built.optimizer, given)
        assert losses.tolist() == pytest.approx(whole.losses, rel=1e-5)
        found = {key: parameter.grad / scale for key, parameter in backend._pipeline.parameters.items()}
        assert_close(found, whole.gradients, rtol=1e-4, atol=1e-6)


def narrow(config: Gpt2Config | BertConfig) -> Gpt2Config | BertConfig:
    """Return a model with as many layers, for short sequences of few tokens, without dropout."""
    dropout = {key: 0.0 for key in dataclasses.asdict(config) if key.endswith("dropout")}
    sizes = {"hidden_size": 4 * config.heads, "positions": 8, "vocabulary_size": 40}
    inner = {"intermediate_size": 12} if isinstance(config, BertConfig) else {}
    return dataclasses.replace(config, **sizes, **inner, **dropout)


def spec_of(config: Gpt2Config | BertConfig, optimizer: Optimizer, pipeline: Pipeline) -> WorkerSpec:
    """Return what the simulator is opened with, in float32 throughout."""
    return WorkerSpec(
        backend="simulator",
        architecture=config.architecture,
        configuration=dataclasses.asdict(config),
        pipeline={**pipeline.model_dump(mode="json"), "precision": "float32", "placement": pipeline.placement},
        optimizer=optimizer.model_dump(mode="json"),
        precision="float32",
        seed=1,
        threads=0,
        executable_cache="",
    )
