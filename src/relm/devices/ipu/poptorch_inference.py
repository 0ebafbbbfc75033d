"""Computes the head's input of a model on IPUs, and texts on one IPU, by PopTorch, as Graphcore's text_generate_gpt2.py does.

A program is compiled for one shape of inputs and one token rule. For Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any, Callable, Hashable, Mapping, Sequence

import poptorch
import torch
from torch import Tensor, nn

from relm.devices.ipu import options
from relm.devices.ipu.backend import Tensors
from relm.devices.ipu.decoding import DecodingLoop, TokenRule, WrittenTokens
from relm.devices.ipu.inference import Beginnings, InferenceSpec, body_of, locate_parameters, require_loop
from relm.devices.ipu.partition import build_model
from relm.models.contract import LanguageModel

# The original's share of an IPU's memory for matrix products if the model is on one IPU.
PROPORTION_ON_ONE = 0.2


class PlacedBody(nn.Module):
    """A model without its head, whose segments are blocks on IPUs."""

    def __init__(self, model: LanguageModel, placement: list[tuple[str, int]], inputs: Sequence[str]) -> None:
        """Keep the model; `inputs` are the names of the arguments of `forward`."""
        super().__init__()
        self.model, self._placement, self._inputs = model, body_of(placement), tuple(inputs)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the head's input."""
        batch = dict(zip(self._inputs, tensors))
        state: dict[str, Tensor] = {}
        for segment, (name, ipu) in zip(self.model.segments(), self._placement):
            with poptorch.Block(name, ipu_id=ipu):
                state = segment.run(batch, state)
        return state["hidden"]


class PoptorchInference:
    """One model on the IPUs that its placement names; fulfils `relm.devices.ipu.inference.Inference`."""

    def __init__(self, spec: InferenceSpec, weights: Tensors) -> None:
        """Build the model."""
        locate_parameters(spec, weights)
        model = build_model(spec.architecture, spec.configuration)
        model.load_state_dict(weights)
        self._model: Any = (model.half() if spec.precision == "float16" else model).eval()
        self._spec = spec
        self._folder = tempfile.TemporaryDirectory(prefix="relm-ipu-")
        if spec.executable_cache:
            os.makedirs(spec.executable_cache, exist_ok=True)
        self._table = inference_options(spec, self._folder.name)
        self._running: Any = None
        self._program: Hashable = None

    def hidden(self, batch: Mapping[str, Tensor]) -> Tensor:
        """See `Inference`; a new shape of inputs is compiled first."""
        program = ("hidden", *((name, tuple(tensor.shape)) for name, tensor in batch.items()))
        build = lambda: PlacedBody(self._model, self._spec.placement, list(batch))  # noqa: E731
        hidden: Tensor = self._run(program, build, *batch.values())
        return hidden.float()

    def write(self, beginnings: Beginnings, rule: TokenRule, tokens: int) -> WrittenTokens:
        """See `Inference`; a new shape of prompts, rule or count of tokens is compiled first."""
        require_loop(self._spec, beginnings, tokens)
        program = ("write", tuple(beginnings.input_ids.shape), rule, tokens)
        build = lambda: DecodingLoop(poptorch.for_loop, self._model, rule, tokens)  # noqa: E731
        written, largest = self._run(program, build, *beginnings.tensors())
        return WrittenTokens(written.to(torch.int64), largest)  # PopTorch has integers of 32 bits

    def _run(self, program: Hashable, build: Callable[[], nn.Module], *tensors: Tensor) -> Any:
        """Return the outputs of a program, which is compiled unless the IPUs have it."""
        if program != self._program:
            self._release()
            made = options.apply_options(poptorch, poptorch.Options(), self._table)
            self._running, self._program = poptorch.inferenceModel(build().eval(), made), program
        return self._running(*tensors)

    def _release(self) -> None:
        if self._running is not None:
            self._running.destroy()
            self._running = None

    def close(self) -> None:
        """Release the IPUs."""
        self._release()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._table["_Popart.set"]["saveInitializersToFile"])
        self._folder.cleanup()


def inference_options(spec: InferenceSpec, folder: str) -> options.Table:
    """Return the options of inference, in which a batch passes through one IPU after the other.

    The compiler writes the weights to a file in the folder for executables, if any, else in `folder`.
    """
    ipus = len({ipu for _, ipu in spec.placement})
    shares = spec.available_memory_proportion or ([PROPORTION_ON_ONE] if ipus == 1 else None)
    table: options.Table = {"deviceIterations": 1, "autoRoundNumIPUs": True}
    table.update(options.memory_and_cache(shares, spec.executable_cache))
    # With another file name in each process the cache might see another program.
    table["_Popart.set"] = {"saveInitializersToFile": os.path.join(spec.executable_cache or folder, "weights.bin")}
    if ipus > 1:
        table["setExecutionStrategy"] = "ShardedExecution(AutoStage.AutoIncrement)"
    return table
