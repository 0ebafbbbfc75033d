"""A model's partition over IPUs: stages, and what lies where."""

import pytest
import torch
from pipeline_cases import BERT, GPT2, random_weights, whole_model

from relm.devices.ipu.partition import ipus_of_parameters
from relm.devices.ipu.schedule import PipelineStage, stages_of
from relm.devices.ipu.simulated_pipeline import SimulatedPipeline, build_on_ipu
from relm.models.contract import LanguageModel
from relm.models.segments import ModelSegment, State
from relm.recipes.machine.pipeline import Pipeline

PLACEMENT = [("token_embedding", 0), ("position_embedding", 1), ("layers.0", 1), ("layers.1", 2), ("layers.2", 2), ("head", 0)]
BATCH = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[2, 3, 4]])}


def gpt2() -> LanguageModel:
    return whole_model(GPT2)


def test_a_stage_is_what_follows_one_another_on_one_ipu() -> None:
    assert stages_of(PLACEMENT) == [
        PipelineStage(0, ("token_embedding",), 7),
        PipelineStage(1, ("position_embedding", "layers.0"), 5),
        PipelineStage(2, ("layers.1", "layers.2"), 3),
        PipelineStage(0, ("head",), 1),
    ]


@pytest.mark.parametrize("layers", [[3], [0, 3], [1, 2], [0, 1, 1, 1], [1, 0, 0, 2], [0, 2, 0, 1]])
@pytest.mark.parametrize("positions", [0, 1])
def test_there_are_as_many_stages_as_the_recipes_section_counts(layers: list[int], positions: int) -> None:
    pipeline = Pipeline(layers_per_ipu=layers, position_embedding=min(positions, len(layers) - 1), gradient_accumulation=99)
    assert len(stages_of(pipeline.placement)) == pipeline.stages


def test_each_parameter_lies_on_the_ipu_of_the_segments_that_read_it() -> None:
    ipus = ipus_of_parameters(gpt2().segments(), PLACEMENT)
    assert set(ipus) == set(random_weights(GPT2))
    assert (ipus["transformer.wte.weight"], ipus["transformer.wpe.weight"]) == (0, 1)
    assert {ipus[name] for name in ipus if ".h.0." in name} == {1}
    assert {ipus[name] for name in ipus if ".h.1." in name or ".h.2." in name or "ln_f" in name} == {2}


def test_a_tied_parameter_on_two_ipus_is_refused() -> None:
    apart = [*PLACEMENT[:-1], ("head", 2)]
    with pytest.raises(ValueError, match="read by token_embedding on IPU 0 and by head on IPU 2; place both"):
        ipus_of_parameters(gpt2().segments(), apart)


def test_the_parameters_of_one_ipu_are_there_and_all_others_are_not() -> None:
    lies_on = ipus_of_parameters(gpt2().segments(), PLACEMENT)
    model = build_on_ipu(gpt2, 1, lies_on)
    found = {name for name, parameter in model.named_parameters() if isinstance(parameter, torch.nn.Parameter)}
    assert found == {name for name, ipu in lies_on.items() if ipu == 1}
    assert next(p for name, p in model.named_parameters() if name == "transformer.wpe.weight").device.type == "cpu"


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        ("token_embedding", "transformer.wte.weight is on IPU 0, but another one read it"),
        ("layers.1", r"transformer.h.1.ln_1.weight is on IPU 2, but another one read it"),
        ("head", "transformer.wte.weight is on IPU 0"),
    ],
)
def test_a_segment_that_reads_a_parameter_of_another_ipu_raises(segment: str, message: str) -> None:
    model = build_on_ipu(gpt2, 1, ipus_of_parameters(gpt2().segments(), PLACEMENT))
    run = {each.name: each.run for each in model.segments()}[segment]
    with pytest.raises(RuntimeError, match=message):
        run(BATCH, {"hidden": torch.zeros(1, 3, 8)})


def test_a_model_that_reads_more_than_it_declares_cannot_run() -> None:
    """A segment that names too few parameters would otherwise pass, since the whole model has them all."""

    class Secretive(type(gpt2())):
        def segments(self) -> list[ModelSegment]:
            first, *others = super().segments()

            def run(batch: dict[str, torch.Tensor], state: State) -> State:
                hidden = first.run(batch, state)["hidden"]
                return {"hidden": hidden + self.transformer.wpe.weight[:3]}

            return [first._replace(run=run), *others]

    model = build_on_ipu(lambda: Secretive(GPT2), 0, ipus_of_parameters(Secretive(GPT2).segments(), PLACEMENT))
    for parameter in model.transformer.wte.parameters():
        torch.nn.init.ones_(parameter)
    with pytest.raises(RuntimeError, match=r"transformer.wpe.weight is on IPU 1"):
        model.segments()[0].run(BATCH, {})


def test_the_parameters_of_a_pipeline_are_the_models_in_its_order() -> None:
    placement = Pipeline(layers_per_ipu=[0, 1, 1, 1], gradient_accumulation=9).placement
    pipeline = SimulatedPipeline(lambda: whole_model(BERT), placement, recompute=True, autocast=lambda: torch.autocast("cpu"))
    assert list(pipeline.parameters) == [name for name, _ in whole_model(BERT).named_parameters()]
    assert sorted(pipeline.ipus) == [0, 1, 2, 3]
