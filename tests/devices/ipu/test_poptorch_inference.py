"""Inference by PopTorch, over a stand-in for PopTorch that runs the model on the CPU."""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import poptorch_stand_in as stand_in
import pytest
import torch

from relm.devices.ipu.backend import BackendError
from relm.devices.ipu.decoding import TokenRule
from relm.devices.ipu.inference import Beginnings, InferenceSpec, SimulatedInference
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
        torch.testing.assert_close(running.hidden({"input_ids": ids}), whole.hidden(ids), rtol=1e-5, atol=1e-6)
    assert stand_in.Block.entered == list(zip(BODY, (0, 0, 0, 1, 1), strict=True))


def options_of(running: Any) -> dict[str, Any]:
    """Return the calls on the options of the program that computes the head's input."""
    running.hidden({"input_ids": torch.zeros(1, 6, dtype=torch.int64)})
    calls: dict[str, Any] = stand_in.inference_executors[-1].options.calls
    running.close()
    return calls


@pytest.mark.parametrize(
    ("ipus", "shares"), [((0, 0, 0, 0, 0), {"IPU0": 0.2}), ((0, 0, 1, 2, 3), None)], ids=["one IPU", "several"]
)
def test_options_are_those_of_graphcores_generation(
    ipus: tuple[int, ...], shares: dict[str, float] | None, poptorch: ModuleType
) -> None:
    calls = options_of(poptorch.PoptorchInference(spec_of(*ipus), model().state_dict()))
    strategy, initializers = calls.pop("setExecutionStrategy", None), calls.pop("_Popart.set")
    assert calls.pop("setAvailableMemoryProportion", None) == shares
    assert calls == {"deviceIterations": 1, "autoRoundNumIPUs": True}
    assert isinstance(strategy, stand_in.ShardedExecution) == (shares is None)
    assert list(initializers) == ["saveInitializersToFile"]


def test_shares_of_memory_and_the_cache_of_executables_are_those_requested(poptorch: ModuleType, tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    spec = spec_of(0, 0, 0, 1, 1)._replace(available_memory_proportion=[0.3, 0.4], executable_cache=str(cache))
    running = poptorch.PoptorchInference(spec, model().state_dict())
    assert cache.is_dir()
    (cache / "weights.bin").write_bytes(b"written by the compiler")
    calls = options_of(running)
    assert calls["setAvailableMemoryProportion"] == {"IPU0": 0.3, "IPU1": 0.4}
    assert calls["enableExecutableCaching"] == str(cache)
    assert calls["_Popart.set"] == {"saveInitializersToFile": str(cache / "weights.bin")}
    assert not list(cache.iterdir()), "the weights' file is removed at the end"


RULE = TokenRule(4, 0.8, 0.9)


def beginnings() -> Beginnings:
    draw = torch.Generator().manual_seed(3)
    noise = -torch.empty(2, 4, RULE.top_k).exponential_(generator=draw).log()
    return Beginnings(torch.randint(12, (2, 3), generator=draw), torch.tensor([3, 1]), noise)


def test_one_call_writes_what_the_simulator_writes_and_loops_on_the_device(poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 0, 0), model().state_dict())
    stand_in.loops.clear()
    found = running.write(beginnings(), RULE, 4)
    assert stand_in.loops == [3]
    assert not stand_in.Block.entered, "one IPU has no blocks, as in the original"
    expected = SimulatedInference(spec_of(0, 0, 0, 0, 0), model().state_dict()).write(beginnings(), RULE, 4)
    assert found.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(found.largest, expected.largest)


def test_another_rule_or_length_is_another_program_and_the_first_is_released(poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 0, 0), model().state_dict())
    for rule, tokens in ((RULE, 4), (RULE, 4), (RULE._replace(uniform=True), 4), (RULE, 3)):
        given = beginnings()
        assert given.noise is not None
        running.write(given._replace(noise=given.noise[:, :tokens]), rule, tokens)
    running.hidden({"input_ids": torch.zeros(1, 6, dtype=torch.int64)})
    assert [executor.alive for executor in stand_in.inference_executors] == [False, False, False, True]


@pytest.mark.parametrize("kind", ["poptorch", "simulator"])
def test_a_loop_on_several_ipus_or_beyond_the_positions_is_refused(kind: str, poptorch: ModuleType) -> None:
    made = SimulatedInference if kind == "simulator" else poptorch.PoptorchInference
    with pytest.raises(
        BackendError, match="the model is on 2 IPUs, but a loop that writes texts runs on one; place all layers"
    ):
        made(spec_of(0, 0, 0, 1, 1), model().state_dict()).write(beginnings(), RULE, 4)
    with pytest.raises(BackendError, match="the model has 6 positions, but the texts have 7; write fewer tokens"):
        made(spec_of(0, 0, 0, 0, 0), model().state_dict()).write(beginnings(), RULE, 5)


def test_another_shape_is_another_program_and_the_ipus_are_released_before(poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 0, 0), model().state_dict())
    for sequences, length in ((1, 6), (1, 6), (2, 4), (2, 4)):
        running.hidden({"input_ids": torch.zeros(sequences, length, dtype=torch.int64)})
    assert [executor.alive for executor in stand_in.inference_executors] == [False, True]
    running.close()
    assert not stand_in.inference_executors[1].alive


def test_half_precision_is_that_of_weights_and_activations(poptorch: ModuleType) -> None:
    running = poptorch.PoptorchInference(spec_of(0, 0, 0, 0, 0, precision="float16"), model().state_dict())
    assert {parameter.dtype for parameter in running._model.parameters()} == {torch.float16}
    ids = torch.arange(6)[None]
    hidden, exact = running.hidden({"input_ids": ids}), model().hidden(ids)
    assert hidden.dtype == torch.float32
    assert not torch.equal(hidden, exact)
    torch.testing.assert_close(hidden, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", ["poptorch", "simulator"])
def test_weights_or_a_placement_of_another_model_are_refused(kind: str, poptorch: ModuleType) -> None:
    made = SimulatedInference if kind == "simulator" else poptorch.PoptorchInference
    weights = model().state_dict()
    with pytest.raises(BackendError, match=r"the weights belong to another model: transformer\.ln_f\.bias; pass those"):
        made(spec_of(0, 0, 0, 0, 0), {name: value for name, value in weights.items() if name != "transformer.ln_f.bias"})
    short = spec_of(0, 0, 0, 0, 0)._replace(placement=[("token_embedding", 0), ("head", 0)])
    with pytest.raises(BackendError, match="the pipeline places head where the model has position_embedding"):
        made(short, weights)
    with pytest.raises(BackendError, match="is read by token_embedding on IPU 0 and by head on IPU 1"):
        made(spec_of(0, 0, 0, 0, 0)._replace(placement=[*zip(BODY, (0,) * 5, strict=True), ("head", 1)]), weights)
