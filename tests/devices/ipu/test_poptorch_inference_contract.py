"""Inference by PopTorch's Python front-end: in Graphcore's image, or over a stand-in for its compiled half.

`make test-py38` runs it, as it does `test_poptorch_contract.py`, whose beginning has the command. Runs on Python 3.8.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

poptorch = pytest.importorskip(
    "poptorch", reason="PopTorch is part of Graphcore's SDK; `make test-py38 POPTORCH=folder` or its image run these tests"
)

from relm.devices.ipu.inference import InferenceSpec  # noqa: E402
from relm.devices.ipu.poptorch_inference import PoptorchInference, inference_options  # noqa: E402
from relm.models.gpt2 import Gpt2, Gpt2Config  # noqa: E402

CONFIG = Gpt2Config(layers=3, heads=2, hidden_size=8, positions=6, vocabulary_size=12, dropout=0.5)
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
            torch.testing.assert_close(running.hidden(ids), whole.hidden(ids), rtol=tolerance, atol=tolerance)
    running.close()


@pytest.mark.parametrize(("ipus", "strategy"), [((0,) * 5, "PipelinedExecution"), ((0, 0, 1, 2, 3), "ShardedExecution")])
def test_the_front_end_takes_the_options(ipus: tuple[int, ...], strategy: str) -> None:
    from relm.devices.ipu import options

    made = options.apply_options(poptorch, poptorch.Options(), inference_options(spec_of(ipus, "float32")))
    assert type(made._execution_strategy).__name__ == strategy, "PopTorch's own default on one IPU"
    assert made.device_iterations == 1
