"""The head's input of a model on IPUs, by PopTorch, with the options of Graphcore's text_generate_gpt2.py. For Python 3.8.

A program is compiled for one shape of inputs; another shape is another program.
"""

from __future__ import annotations

from typing import Any

import poptorch
from torch import Tensor, nn

from relm.devices.ipu import options
from relm.devices.ipu.backend import Tensors
from relm.devices.ipu.inference import InferenceSpec, body_of, locate_parameters
from relm.devices.ipu.partition import build_model
from relm.models.contract import LanguageModel


class PlacedBody(nn.Module):
    """A model without its head, whose segments are blocks on IPUs."""

    def __init__(self, model: LanguageModel, placement: list[tuple[str, int]]) -> None:
        super().__init__()
        self.model, self._placement = model, body_of(placement)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(batch, sequence) -> (batch, sequence, width)"""
        state: dict[str, Tensor] = {}
        for segment, (name, ipu) in zip(self.model.segments(), self._placement):
            with poptorch.Block(name, ipu_id=ipu):
                state = segment.run({"input_ids": input_ids}, state)
        return state["hidden"]


class PoptorchInference:
    """One model on the IPUs that its placement names; fulfils `relm.devices.ipu.inference.Inference`."""

    def __init__(self, spec: InferenceSpec, weights: Tensors) -> None:
        """Build the model.

        Raises:
            BackendError: the placement or the weights are of another model.
        """
        locate_parameters(spec, weights)
        model = build_model(spec.architecture, spec.configuration)
        model.load_state_dict(weights)
        self._body = PlacedBody(model.half() if spec.precision == "float16" else model, spec.placement).eval()
        self._table = inference_options(spec)
        self._running: Any = None
        self._shape: tuple[int, ...] = ()

    def hidden(self, input_ids: Tensor) -> Tensor:
        """See `Inference`; inputs of a new shape are compiled for first."""
        if tuple(input_ids.shape) != self._shape:
            self.close()
            made = options.apply_options(poptorch, poptorch.Options(), self._table)
            self._running, self._shape = poptorch.inferenceModel(self._body, made), tuple(input_ids.shape)
        hidden: Tensor = self._running(input_ids).float()
        return hidden

    def close(self) -> None:
        """Release the IPUs."""
        if self._running is not None:
            self._running.destroy()
            self._running = None


def inference_options(spec: InferenceSpec) -> options.Table:
    """Return the options of inference: IPUs take turns, as a batch passes through them once."""
    table: options.Table = {"deviceIterations": 1, "autoRoundNumIPUs": True}
    if len({ipu for _, ipu in spec.placement}) > 1:
        table["setExecutionStrategy"] = "ShardedExecution(AutoStage.AutoIncrement)"
    return table
