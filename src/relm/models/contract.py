"""The interface between training and models of every architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.layers import TracedModule, recomputed, softcapped
from relm.models.losses import Term, cross_entropy_in_chunks, cross_entropy_of_projection
from relm.models.segments import ModelSegment


class LanguageModel(TracedModule):
    """A model whose parameters `initialise`, a folder or a state dict sets.

    Shapes in a batch are static, and a forward pass never waits for the device.
    """

    config: Any
    """A frozen dataclass with `from_huggingface` and `to_huggingface`."""
    activation_checkpointing: bool = False
    """True: recompute each layer in the backward pass, with the same random numbers, to save memory."""
    recomputed: Callable[..., Tensor] = staticmethod(recomputed)
    """The function that does so, called as `recomputed(layer, *inputs)`; a device may set another."""
    project_vocabulary: Callable[..., Tensor] = staticmethod(F.linear)
    """The projection to the vocabulary, called as `project_vocabulary(hidden, weight, bias)`; a device may set another."""
    loss_chunk: int | None = None
    """Positions of a sequence whose cross-entropy is computed at once; None: all."""
    logit_softcap: float | None = None
    """Limit of the logits, for `softcapped`; None: no limit."""
    keeps_logits: bool = True
    """False: with `loss_chunk`, no more logits than those of its positions are ever in memory, which needs torch's autograd."""

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return `terms`."""
        return self.terms(batch)

    @property
    def tokenizer_outputs(self) -> list[str]:
        """Return the names of the tokenizer's outputs that the model takes, as `transformers` names and orders them."""
        return ["input_ids", "attention_mask"]

    @property
    def recompute(self) -> Callable[..., Tensor] | None:
        """Return the function that calls a layer and recomputes it later; None without activation checkpointing."""
        return self.recomputed if self.activation_checkpointing else None

    def require_positions(self, input_ids: Tensor) -> None:
        """Raise ValueError if sequences, (batch, sequence), are longer than the model's positions."""
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the parts of a batch's loss, by name."""
        raise NotImplementedError

    def vocabulary_projection(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what the head projects to the vocabulary, (..., width), and the projection's weight and bias."""
        raise NotImplementedError

    def head(self, hidden: Tensor) -> Tensor:
        """(..., hidden) at any positions -> (..., vocabulary), the logits of the token that each position predicts"""
        logits = self.project_vocabulary(*self.vocabulary_projection(hidden))
        return logits if self.logit_softcap is None else softcapped(logits, self.logit_softcap)

    def score_tokens(self, hidden: Tensor, labels: Tensor) -> Term:
        """Score labels (batch, positions) under the logits at the head's input (batch, positions, hidden)."""
        if self.keeps_logits or self.loss_chunk is None:
            return cross_entropy_in_chunks(self.head(hidden), labels, self.loss_chunk, self.traced)
        return cross_entropy_of_projection(*self.vocabulary_projection(hidden), labels, self.loss_chunk, self.logit_softcap)

    def segments(self) -> list[ModelSegment]:
        """Return the parts of the forward pass, in the order of their execution, which together compute `terms`."""
        raise NotImplementedError

    def parameter_names(self, *prefixes: str) -> tuple[str, ...]:
        """Return the names of the parameters that begin with one of the prefixes, in the order of the parameters."""
        return tuple(name for name, _ in self.named_parameters() if name.startswith(prefixes))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters, so that a seed fixes them on every device."""
        raise NotImplementedError

    def huggingface_weights(self) -> dict[str, Tensor]:
        """Return the weights under the names of the class of `transformers`."""
        return dict(self.state_dict())

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write a folder that `transformers` reads, with the ids of special tokens, such as `bos_token_id`."""
        raise NotImplementedError

    def parameter_count(self) -> int:
        """Return the count of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())
