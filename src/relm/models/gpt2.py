"""GPT-2: the decoder with learnt positions and a tied head, under the parameter names of ``GPT2LMHeadModel`` on disk.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from relm.models.decoder import Decoder
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.llm_c_weights import draw_as_llm_c
from relm.models.weights import read_weights

# Published files may also hold these buffers, the causal mask.
_MASK_BUFFERS = (".attn.bias", ".attn.masked_bias")
_COPIES = {"lm_head.weight": "transformer.wte.weight"}


class Gpt2(Decoder):
    """A GPT-2 language model, from token ids to logits of each next token."""

    config: Gpt2Config
    config_class = Gpt2Config

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights as `Decoder.initialise` does, or as llm.c draws them."""
        if self.config.initialisation == "normal":
            super().initialise(generator)
        else:
            draw_as_llm_c(self.named_parameters(), generator, self.config.initializer_range, self.config)

    def load_weights(self, folder: Path) -> None:
        self.load_state_dict(read_weights(folder, self.state_dict(), _own_name, _COPIES, self._absent_biases()))

    def huggingface_weights(self) -> dict[str, Tensor]:
        """Return the weights under the names of `GPT2LMHeadModel`, with zeros for biases that this model lacks."""
        return {**self.state_dict(), **self._absent_biases()}

    def _absent_biases(self) -> dict[str, Tensor]:
        """Return zeros for the biases that `transformers` has and this model lacks."""
        if self.config.biases:
            return {}
        return {
            name[: -len("weight")] + "bias": torch.zeros(parameter.shape[-1])
            for name, parameter in self.named_parameters()
            if not name.endswith(("wte.weight", "wpe.weight"))
        }


def _own_name(published: str) -> str | None:
    """Return the module's name for a name in a file, which lacks the prefix in the first release; None for a mask buffer."""
    if published.endswith(_MASK_BUFFERS):
        return None
    return published if published.startswith(("transformer.", "lm_head.")) else "transformer." + published
