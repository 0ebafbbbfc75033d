"""Inference by PopTorch, over a stand-in for PopTorch that runs the model on the CPU."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import poptorch_stand_in as stand_in
import pytest
import torch

from relm.devices.ipu.backend import BackendError
from relm.devices.ipu.inference import InferenceSpec, SimulatedInference
from relm.models.gpt2 import Gpt2, Gpt2Config

CONFIG = Gpt2Config(layers=3, heads=2, hidden_size=8, positions=6, vocabulary_size=12, dropout=0.5)
BODY = ["token_embedding", "position_embedding", "layers.0", "layers.1", "layers.2"]


@pytest.fixture
def poptorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `relm.devices.ipu.poptorch_inference`, which has imported the stand-in."""
    monkeypatch.setitem(sys.modules, "poptorch", stand_in)
    stand_in.inference_executors.clear()
    yield importlib.import_module("relm.devices.ipu.poptorch_inference")
    sys.modules.pop("relm.devices.ipu.poptorch_inference", None)


def model() -> Gpt2:
    made = Gpt2(CONFIG)
    made.initialise(torch.Generator().manual_seed(0))
    return made.eval()


def spec_of(*ipus: int, precision: str = "float32") -> InferenceSpec:
    placement = [*zip(BODY, ipus, strict=True), ("head", ipus[0])]
    return InferenceSpec("gpt2", dataclasses.asdict(CONFIG), placement, precision, threads=1)


def test_the_heads_input_is_that_of_the_whole_model_and_blocks_are_those_of_the_placement(poptorch: ModuleType) -> None:
    whole, ids = model(), torch.arange(12).reshape(2, 6)
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 1, 1), whole.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(running.hidden(ids), whole.hidden(ids), rtol=1e-5, atol=1e-6)
    assert stand_in.Block.entered == list(zip(BODY, (0, 0, 0, 1, 1), strict=True))


@pytest.mark.parametrize(("ipus", "is_sharded"), [((0, 0, 0, 0, 0), False), ((0, 0, 1, 2, 3), True)])
def test_options_are_those_of_graphcores_generation(ipus: tuple[int, ...], is_sharded: bool, poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(*ipus), model().state_dict())
    running.hidden(torch.zeros(1, 6, dtype=torch.int64))
    calls = stand_in.inference_executors[0].options.calls
    strategy = calls.pop("setExecutionStrategy", None)
    assert calls == {"deviceIterations": 1, "autoRoundNumIPUs": True}
    assert isinstance(strategy, stand_in.ShardedExecution) == is_sharded


def test_another_shape_is_another_program_and_the_ipus_are_released_before(poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 0, 0), model().state_dict())
    for sequences, length in ((1, 6), (1, 6), (2, 4), (2, 4)):
        running.hidden(torch.zeros(sequences, length, dtype=torch.int64))
    assert [executor.alive for executor in stand_in.inference_executors] == [False, True]
    running.close()
    assert not stand_in.inference_executors[1].alive


def test_half_precision_is_that_of_weights_and_activations(poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 0, 0, precision="float16"), model().state_dict())
    assert {parameter.dtype for parameter in running._body.parameters()} == {torch.float16}
    ids = torch.arange(6)[None]
    hidden, exact = running.hidden(ids), model().hidden(ids)
    assert hidden.dtype == torch.float32
    assert not torch.equal(hidden, exact)
    torch.testing.assert_close(hidden, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", ["poptorch", "simulator"])
def test_weights_or_a_placement_of_another_model_are_refused(kind: str, poptorch: ModuleType) -> None:
    made = SimulatedInference if kind == "simulator" else poptorch.PoptorchInference
    weights = model().state_dict()
    with pytest.raises(BackendError, match=r"the weights are of another model: transformer\.ln_f\.bias; give those"):
        made(spec_of(0, 0, 0, 0, 0), {name: value for name, value in weights.items() if name != "transformer.ln_f.bias"})
    short = spec_of(0, 0, 0, 0, 0)._replace(placement=[("token_embedding", 0), ("head", 0)])
    with pytest.raises(BackendError, match="the pipeline places head where the model has position_embedding"):
        made(short, weights)
    with pytest.raises(BackendError, match="is read by token_embedding on IPU 0 and by head on IPU 1"):
        made(spec_of(0, 0, 0, 0, 0)._replace(placement=[*zip(BODY, (0,) * 5, strict=True), ("head", 1)]), weights)
