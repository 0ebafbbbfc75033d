"""Compute the input of a model's head on IPUs, and texts on one IPU; here with the simulator, in plain torch.

Logits never leave the device: for GPT-2's vocabulary they are sixty times as many numbers as the head's input. The host also
has the head, and computes only the logits that it needs. Runs on Python 3.8.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Mapping, NamedTuple, Protocol, Sequence

import torch
from torch import Tensor

from relm.devices.ipu.backend import BackendError, Tensors
from relm.devices.ipu.decoding import DecodingLoop, TokenRule, WrittenTokens, repeat_on_host
from relm.devices.ipu.partition import build_model, ipus_of_parameters
from relm.devices.ipu.simulated_pipeline import build_on_ipu
from relm.models.contract import LanguageModel


class InferenceSpec(NamedTuple):
    """The model and its division; sent to the worker as JSON."""

    architecture: str
    """gpt2 or bert."""
    configuration: dict[str, Any]
    """The fields of the architecture's configuration."""
    placement: list[tuple[str, int]]
    """Pairs of segment and IPU, in the order of execution."""
    precision: str
    """float32; on IPUs also float16, of weights and activations; in the simulator also bfloat16, of matrix products."""
    threads: int
    """CPU threads of the simulator."""
    available_memory_proportion: list[float] | None = None
    """Share of each IPU's memory for temporary values of products; None: the original's on one IPU, else PopTorch's."""
    executable_cache: str = ""
    """Folder for compiled executables; empty: they are not kept."""


class Beginnings(NamedTuple):
    """Prompts of texts, and the random numbers of their tokens."""

    input_ids: Tensor
    """(batch, sequence) int64, prompts padded at their ends with any id."""
    lengths: Tensor
    """(batch,) int64, tokens of each prompt, at least one."""
    noise: Tensor | None = None
    """(batch, tokens, top_k) float32, standard Gumbel draws; None if the rule does not draw."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors but None, in the order of the arguments of `DecodingLoop.forward`."""
        return [tensor for tensor in self if tensor is not None]


class Inference(Protocol):
    """Computes the head's input of one model."""

    def hidden(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the head's input, float32, for a batch as the segments read it, without labels.

        Args:
            batch: int64, `input_ids`, (batch, sequence), for a GPT-2, whose result is (batch, sequence, width). For a BERT also
                `attention_mask`, `token_type_ids` and `masked_positions`, (batch, slots); the result is (batch, slots, width),
                and the first token's is before those of the slots if it has a head for sentence pairs.
        """

    def write(self, beginnings: Beginnings, rule: TokenRule, tokens: int) -> WrittenTokens:
        """Return `tokens` ids after each prompt, by a loop on the device, which must hold the whole model."""

    def close(self) -> None:
        """Release the device."""


class SimulatedInference:
    """The model on simulated IPUs, each with only the parameters of its segments."""

    def __init__(self, spec: InferenceSpec, weights: Tensors) -> None:
        """Place the weights."""
        if spec.precision not in ("float32", "bfloat16"):
            raise BackendError(
                f"precision is {spec.precision}, but the simulator computes only in float32 or bfloat16; choose one of them"
            )
        torch.set_num_threads(spec.threads)
        lies_on = locate_parameters(spec, weights)
        build = partial(build_model, spec.architecture, spec.configuration)
        self._models = {ipu: build_on_ipu(build, ipu, lies_on).eval() for ipu in sorted({ipu for _, ipu in spec.placement})}
        with torch.no_grad():
            for name, ipu in lies_on.items():
                self._models[ipu].get_parameter(name).copy_(weights[name])
        self._spec = spec

    def hidden(self, batch: Mapping[str, Tensor]) -> Tensor:
        """See `Inference`."""
        state: dict[str, Tensor] = {}
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._spec.precision == "bfloat16"):
            for number, (_, ipu) in enumerate(body_of(self._spec.placement)):
                state = self._models[ipu].segments()[number].run(batch, state)
        return state["hidden"].float()

    def write(self, beginnings: Beginnings, rule: TokenRule, tokens: int) -> WrittenTokens:
        """See `Inference`."""
        require_loop(self._spec, beginnings, tokens)
        model: Any = next(iter(self._models.values()))
        loop = DecodingLoop(repeat_on_host, model, rule, tokens)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._spec.precision == "bfloat16"):
            return WrittenTokens(*loop(*beginnings.tensors()))

    def close(self) -> None:
        """Do nothing: no device is held."""


def require_loop(spec: InferenceSpec, beginnings: Beginnings, tokens: int) -> None:
    """Raise unless a loop on the device can write the texts.

    PopTorch's loop runs on one IPU; Graphcore's text_generate_gpt2.py rejects several, too.
    """
    ipus = {ipu for _, ipu in spec.placement}
    if len(ipus) > 1:
        raise BackendError(
            f"the model is on {len(ipus)} IPUs, but a loop that writes texts runs on one; place all layers on one"
        )
    longest, positions = beginnings.input_ids.shape[1] + tokens - 1, spec.configuration["positions"]
    if longest > positions:
        raise BackendError(f"the model has {positions} positions, but the texts have {longest}; write fewer tokens")


def body_of(placement: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the placement of all segments but the head."""
    return [(name, ipu) for name, ipu in placement if name != "head"]


def locate_parameters(spec: InferenceSpec, weights: Tensors) -> dict[str, int]:
    """Return the IPU of each parameter."""
    try:
        with torch.device("meta"):
            model: LanguageModel = build_model(spec.architecture, spec.configuration)
        lies_on = ipus_of_parameters(model.segments(), spec.placement)
    except ValueError as error:
        raise BackendError(str(error)) from None
    if faults := sorted(set(weights) ^ set(lies_on)):
        raise BackendError(f"the weights belong to another model: {', '.join(faults[:5])}; pass those of this model")
    return lies_on
