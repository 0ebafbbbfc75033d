"""A model with its segments on the IPUs of a pipeline, as the module that PopTorch traces and compiles.

Does not import poptorch. Runs on Python 3.8.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import Tensor, nn

from relm.models.contract import LanguageModel
from relm.models.segments import State, terms_of

DIVISOR = "divisor."
"""Prefix of the divisors of terms in a batch (`relm.devices.ipu.backend.UpdateCall`)."""


class PlacedModel(nn.Module):
    """A model with the loss that PopTorch differentiates, and the sums that it accumulates over micro-batches."""

    def __init__(
        self, poptorch: Any, model: LanguageModel, pipeline: Mapping[str, Any], inputs: Sequence[str], terms: Sequence[str]
    ) -> None:
        """Place the segments, and make the model project to the vocabulary in slices.

        `inputs` names the tensors of a micro-batch, in the order of `forward`'s arguments, and `terms` the loss's terms.
        """
        super().__init__()
        self._poptorch = poptorch
        self.model = model
        self.inputs, self.term_names = tuple(inputs), tuple(terms)
        self._placement = [(name, ipu) for name, ipu in pipeline["placement"]]
        self._recomputes = pipeline["recompute_layers"]
        model.loss_chunk = pipeline["loss_chunk"]
        if pipeline["vocabulary_serialisation"] > 1:
            model.project_vocabulary = VocabularySlices(poptorch, pipeline["vocabulary_serialisation"])

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, and each term's sum of nats and count of correct labels, float32 scalars."""
        batch = dict(zip(self.inputs, tensors))
        state: State = {}
        outputs: tuple[Tensor, ...] = ()
        for segment, (name, ipu) in zip(self.model.segments(), self._placement):
            with self._poptorch.Block(name, ipu_id=ipu):
                state = segment.run(batch, state)
                if self._recomputes and name.startswith("layers."):
                    state = self._checkpointed(state)
                if name == "head":
                    outputs = self._outputs(batch, state)
        return outputs

    def _checkpointed(self, state: State) -> State:
        """Return the state, marked as the only tensors to keep for the backward pass."""
        return {name: self._poptorch.recomputationCheckpoint(tensor) for name, tensor in state.items()}

    def _outputs(self, batch: Mapping[str, Tensor], state: State) -> tuple[Tensor, ...]:
        terms = terms_of(state)
        shares = [terms[name].nats / batch[DIVISOR + name][0] for name in self.term_names]
        loss = self._poptorch.identity_loss(sum(shares[1:], shares[0]), "none")
        sums = [value for name in self.term_names for value in (terms[name].nats, terms[name].correct.to(torch.float32))]
        return (loss, *sums)


class VocabularySlices:
    """The projection to the vocabulary, computed in slices of the vocabulary one after the other."""

    def __init__(self, poptorch: Any, slices: int) -> None:
        self._poptorch, self._slices = poptorch, slices

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(..., hidden), (vocabulary, hidden) and (vocabulary,) -> (..., vocabulary)"""
        mode = self._poptorch.MatMulSerializationMode.OutputChannels
        logits: Tensor = self._poptorch.serializedMatMul(hidden, weight.t(), mode, self._slices)
        return logits if bias is None else logits + bias
