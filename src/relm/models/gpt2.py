"""GPT-2: the decoder with learnt positions and a tied head, under the parameter names of ``GPT2LMHeadModel`` on disk.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners". Imports nothing of this package except
`relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from relm.models.configuration import folder_config
from relm.models.decoder import Decoder
from relm.models.gpt2_configuration import FREE_FIELDS, Gpt2Config
from relm.models.llm_c_weights import draw_as_llm_c
from relm.models.weights import read_weights, write_folder

# Published files may hold these buffers with the causal mask beside the parameters.
_MASK_BUFFERS = (".attn.bias", ".attn.masked_bias")
_COPIES = {"lm_head.weight": "transformer.wte.weight"}


class Gpt2(Decoder):
    """A GPT-2 language model, from token ids to logits of each next token."""

    config: Gpt2Config

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights as `Decoder.initialise` does, or as llm.c draws them."""
        if self.config.initialisation == "normal":
            super().initialise(generator)
        else:
            draw_as_llm_c(self.named_parameters(), generator, self.config.initializer_range, self.config)

    @classmethod
    def from_folder(cls, folder: Path, expected: Gpt2Config | None = None) -> Gpt2:
        """Load the model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        Args:
            folder: nothing in it is executed or unpickled.
            expected: the architecture that the weights must fit, and the dropout to train them with; None: the folder's.

        Raises:
            ValueError: the architecture is another one, or parameters are missing, unknown, or of another shape.
            OSError: a file is absent.
        """
        model = cls(folder_config(folder, Gpt2Config, expected, FREE_FIELDS))
        weights = read_weights(folder, model.state_dict(), _own_name, _COPIES, model._absent_biases())
        model.load_state_dict(weights)
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json`, `generation_config.json` and `model.safetensors` (float32) into an existing folder.

        Args:
            tokens: ids of special tokens, such as `bos_token_id` and `eos_token_id`.
        """
        write_folder(folder, self.config.to_huggingface(), tokens, self.huggingface_weights(), generates=True)

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
