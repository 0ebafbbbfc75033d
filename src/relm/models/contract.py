"""What training asks of a model, whatever its architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relm.models.layers import TracedModule, recomputed
from relm.models.losses import Term


class LanguageModel(TracedModule):
    """A model whose parameters are unset until `initialise`, a folder or a state dict sets them.

    Shapes in a batch are static, and nothing in a forward pass waits for the device.
    """

    config: Any
    """A frozen dataclass with `from_huggingface` and `to_huggingface`."""
    activation_checkpointing: bool = False
    """Whether each layer is computed anew in the backward pass, with the same random numbers, to save memory."""
    recomputed: Callable[..., Tensor] = staticmethod(recomputed)
    """How that is done, called as `recomputed(layer, *inputs)`; a device may have a way of its own."""

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """`terms`."""
        return self.terms(batch)

    @property
    def tokenizer_outputs(self) -> list[str]:
        """Return what a tokenizer has to give the model, in the words and the order of `transformers`."""
        return ["input_ids", "attention_mask"]

    @property
    def recompute(self) -> Callable[..., Tensor] | None:
        """How its layers are called, where that is to save memory; else None."""
        return self.recomputed if self.activation_checkpointing else None

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """The parts of a batch's loss, by name."""
        raise NotImplementedError

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters: a seed gives the same on every device."""
        raise NotImplementedError

    def huggingface_weights(self) -> dict[str, Tensor]:
        """Return the weights under the names of the class of `transformers`."""
        return dict(self.state_dict())

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write a folder that `transformers` reads, with the ids of special tokens, such as `bos_token_id`."""
        raise NotImplementedError

    def parameter_count(self) -> int:
        """How many numbers are learnt; what is tied counts once."""
        return sum(parameter.numel() for parameter in self.parameters())
