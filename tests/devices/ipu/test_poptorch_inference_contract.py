"""Inference by PopTorch's Python front-end: in Graphcore's image, or over a stand-in for its compiled half.

`make test-py38` runs it, as it does `test_poptorch_contract.py`, whose beginning has the command. Runs on Python 3.8.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

poptorch = pytest.importorskip(
    "poptorch", reason="PopTorch is part of Graphcore's SDK; `make test-py38 POPTORCH=folder` or its image run these tests"
)

from relm.devices.ipu.decoding import DecodingLoop, TokenRule  # noqa: E402
from relm.devices.ipu.inference import Beginnings, InferenceSpec, SimulatedInference  # noqa: E402
from relm.devices.ipu.poptorch_inference import PoptorchInference, inference_options  # noqa: E402
from relm.models.bert import Bert  # noqa: E402
from relm.models.bert_configuration import BertConfig  # noqa: E402
from relm.models.gpt2 import Gpt2, Gpt2Config  # noqa: E402

# What only the stand-in can do: show the program.
core = pytest.importorskip("poptorch.poptorch_core")
stand_in = pytest.mark.skipif(not hasattr(core, "executables"), reason="a compiled program has no records")

CONFIG = Gpt2Config(layers=3, heads=2, hidden_size=8, positions=6, vocabulary_size=12, dropout=0.5)
BERT = BertConfig(
    layers=2, heads=2, hidden_size=8, intermediate_size=12, positions=6, vocabulary_size=12, next_sentence=True
)  # fmt: skip
BODY = ["token_embedding", "position_embedding", "layers.0", "layers.1", "layers.2"]


def model() -> Gpt2:
    made = Gpt2(CONFIG)
    made.initialise(torch.Generator().manual_seed(0))
    return made.eval()


def spec_of(ipus: tuple[int, ...], precision: str) -> InferenceSpec:
    return InferenceSpec("gpt2", dataclasses.asdict(CONFIG), [*zip(BODY, ipus), ("head", 0)], precision, threads=1)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("ipus", [(0, 0, 0, 0, 0), (0, 0, 0, 1, 1), (0, 0, 1, 2, 3)])
def test_the_heads_input_is_that_of_the_whole_model_for_every_shape(ipus: tuple[int, ...], precision: str) -> None:
    running, whole = PoptorchInference(spec_of(ipus, precision), model().state_dict()), model()
    tolerance = 1e-5 if precision == "float32" else 2e-2
    for sequences, length in ((2, 6), (2, 6), (1, 4)):
        ids = torch.randint(12, (sequences, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            torch.testing.assert_close(running.hidden({"input_ids": ids}), whole.hidden(ids), rtol=tolerance, atol=tolerance)
    running.close()


@pytest.mark.parametrize("ipus", [(0, 0, 0, 0), (0, 0, 0, 1)])
def test_the_encoders_output_of_a_bert_is_that_of_the_whole_model(ipus: tuple[int, ...]) -> None:
    whole = Bert(BERT).eval()
    whole.initialise(torch.Generator().manual_seed(0))
    placement = [*zip(["token_embedding", "position_embedding", "layers.0", "layers.1"], ipus), ("head", 0)]
    spec = InferenceSpec("bert", dataclasses.asdict(BERT), placement, "float32", threads=1)
    running, draw = PoptorchInference(spec, whole.state_dict()), torch.Generator().manual_seed(1)
    mask = (torch.arange(6) < torch.tensor([[6], [4]])).to(torch.int64)
    ids, kinds = torch.randint(12, (2, 6), generator=draw), torch.randint(2, (2, 6), generator=draw)
    slots = torch.tensor([[1, 3, 2], [0, 3, 3]])
    found = running.hidden({"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds, "masked_positions": slots})
    running.close()
    with torch.no_grad():
        expected = whole.encoded(ids, mask, kinds, torch.cat([torch.zeros_like(slots[:, :1]), slots], dim=1))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ipus", "strategy"), [((0,) * 5, "PipelinedExecution"), ((0, 0, 1, 2, 3), "ShardedExecution")])
def test_the_front_end_takes_the_options(ipus: tuple[int, ...], strategy: str, tmp_path: Path) -> None:
    from relm.devices.ipu import options

    spec = spec_of(ipus, "float32")._replace(executable_cache=str(tmp_path))
    made = options.apply_options(poptorch, poptorch.Options(), inference_options(spec, "folder"))
    assert type(made._execution_strategy).__name__ == strategy, "PopTorch's own default on one IPU"
    assert made.device_iterations == 1
    assert made._Popart.options["saveInitializersToFile"] == str(tmp_path / "weights.bin")
    assert made._values["available_memory_proportion"] == ({0: 0.2} if ipus == (0,) * 5 else {})


# --- texts that one IPU writes ---------------------------------------------------------------------------------------------

ONE = (0,) * 5
LENGTHS = torch.tensor([3, 1])
RULES = [TokenRule(1), TokenRule(4, 0.8, 0.9), TokenRule(3, uniform=True)]


def beginnings(rule: TokenRule, tokens: int) -> Beginnings:
    draw = torch.Generator().manual_seed(3)
    noise = -torch.empty(2, tokens, rule.top_k).exponential_(generator=draw).log() if rule.draws else None
    return Beginnings(torch.randint(12, (2, 3), generator=draw), LENGTHS, noise)


@pytest.mark.parametrize("rule", RULES, ids=["greedy", "drawn", "uniform"])
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_a_loop_on_the_device_writes_the_texts_of_the_simulator(rule: TokenRule, tokens: int) -> None:
    given, weights = beginnings(rule, tokens), model().state_dict()
    running = PoptorchInference(spec_of(ONE, "float32"), weights)
    found, again = (running.write(given, rule, tokens) for _ in range(2))
    expected = SimulatedInference(spec_of(ONE, "float32"), weights).write(given, rule, tokens)
    running.close()
    assert found.tokens.tolist() == again.tokens.tolist() == expected.tokens.tolist()
    assert found.tokens.dtype == torch.int64
    torch.testing.assert_close(found.largest, expected.largest)


def test_a_loop_computes_in_half_precision_what_the_simulator_does_but_for_rounding() -> None:
    given, weights = beginnings(RULES[0], 4), model().state_dict()
    running = PoptorchInference(spec_of(ONE, "float16"), weights)
    expected = SimulatedInference(spec_of(ONE, "float32"), weights).write(given, RULES[0], 4)
    torch.testing.assert_close(running.write(given, RULES[0], 4).largest, expected.largest, rtol=2e-2, atol=2e-2)
    running.close()


@stand_in
def test_one_program_has_the_whole_loop_and_its_body_once() -> None:
    running = PoptorchInference(spec_of(ONE, "float32"), model().state_dict())
    running.write(beginnings(RULES[0], 4), RULES[0], 4)
    graph = core.executables[-1].graph
    (loop,) = graph.loops
    assert loop.count == 3, "the first token follows from the pass over the prompts"
    assert len(loop.inputs) == len(loop.outputs) == 6
    assert len(graph.outputs) == 2
    products = [name for name in map(str, (record[0] for record in loop.records)) if "mm" in name]
    assert len(products) == 3 * 6 + 1, "four matrices and two products of attention in each layer, and the head"
    assert not graph.blocks, "one IPU has no blocks, as in the original"
    running.close()


def test_head_input_and_texts_take_turns_on_the_ipus() -> None:
    running, whole = PoptorchInference(spec_of(ONE, "float32"), model().state_dict()), model()
    ids = torch.arange(6)[None]
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(running.hidden({"input_ids": ids}), whole.hidden(ids), rtol=1e-5, atol=1e-5)
        assert running.write(beginnings(RULES[0], 2), RULES[0], 2).tokens.shape == (2, 2)
    running.close()


def test_a_loop_cannot_be_trained() -> None:
    class Trained(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loop = DecodingLoop(poptorch.for_loop, model(), RULES[0], 2)

        def forward(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.loop(input_ids, lengths)[1], "sum")

    trained = Trained()
    training = poptorch.trainingModel(trained, optimizer=poptorch.optim.SGD(trained.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match=r"poptorch\.for_loop\(\) is only supported in inference"):
        training(torch.zeros(2, 3, dtype=torch.int64), LENGTHS)
