"""The decoder of modded-nanogpt's optimization track (github.com/KellerJordan/modded-nanogpt at f411b3d3).

The track fixes this model and its data, and compares optimizers. Imports nothing of this package except `relm.models`, and
imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from relm.models.configuration import folder_config
from relm.models.decoder import Block, Decoder, Projection
from relm.models.layers import RmsNorm
from relm.models.modded_gpt_configuration import FREE_FIELDS, ModdedGptConfig
from relm.models.weights import read_weights, write_folder


class ModdedGpt(Decoder):
    """A language model with normalised queries and keys, half rotary positions, squared ReLU, and capped logits."""

    config: ModdedGptConfig

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU in the order of the original's modules, queries, keys and values apart.

        The embedding is standard normal, rounded to bfloat16; projections into the residual stream and the head are 0.
        zero_biases, since June 2026: other matrices are normal with the variance of torch's linear layers, all biases 0.
        torch_linear, before: other matrices and their biases are uniform, as torch draws linear layers.
        """
        is_uniform = self.config.initialisation == "torch_linear"
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0 if ".ln_" in name else 0.0)
            rounded = self.transformer.wte.weight.normal_(generator=generator).to(torch.bfloat16)
            self.transformer.wte.weight.copy_(rounded)
            for block in cast("Iterable[Block]", self.transformer.h):
                for projection in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
                    is_zero = projection in (block.attn.c_proj, block.mlp.c_proj)
                    _draw_maps(projection, generator, is_uniform=is_uniform, is_zero=is_zero)
                if not is_uniform:  # the original draws the scales, with a standard deviation of 0
                    for norm in (block.ln_1, block.ln_2):
                        cast(RmsNorm, norm).weight.normal_(1.0, 0.0, generator=generator)
            self.lm_head.weight.zero_()

    @classmethod
    def from_folder(cls, folder: Path, expected: ModdedGptConfig | None = None) -> ModdedGpt:
        """Load the model in a folder that `save_folder` wrote, in float32, in training mode.

        Args:
            folder: nothing in it is executed or unpickled.
            expected: the architecture that the weights must fit; None: the folder's.

        Raises:
            ValueError: the architecture is another one, or parameters are missing, unknown, or of another shape.
            OSError: a file is absent.
        """
        model = cls(folder_config(folder, ModdedGptConfig, expected, FREE_FIELDS))
        model.load_state_dict(read_weights(folder, model.state_dict(), str, {}, {}))
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json`, `generation_config.json` and `model.safetensors` (float32) into an existing folder.

        Args:
            tokens: ids of special tokens, such as `bos_token_id` and `eos_token_id`.
        """
        write_folder(folder, self.config.to_huggingface(), tokens, self.huggingface_weights(), generates=True)

    def huggingface_weights(self) -> dict[str, Tensor]:
        """Return the weights under the module's own names: `transformers` has no class for them."""
        return self.state_dict()


def _draw_maps(projection: Projection, generator: torch.Generator, is_uniform: bool, is_zero: bool) -> None:
    """Draw the maps that are side by side in a projection, whose biases are 0 before."""
    assert projection.bias is not None, "this architecture has biases"
    widths = projection.widths
    for rows, bias in zip(torch.split(projection.weight.t(), list(widths)), torch.split(projection.bias, list(widths))):
        inputs = rows.shape[1]
        if is_uniform:  # also where the draws are set to 0
            bound = math.sqrt(3.0) * (math.sqrt(2.0 / (1 + 5)) / math.sqrt(inputs))  # rounded as torch does
            rows.copy_(torch.empty(rows.shape).uniform_(-bound, bound, generator=generator))
            bound = 1 / math.sqrt(inputs)
            bias.copy_(torch.empty(bias.shape).uniform_(-bound, bound, generator=generator))
        elif not is_zero:
            rows.copy_(torch.empty(rows.shape).normal_(0.0, 0.33**0.5 / inputs**0.5, generator=generator))
    if is_zero:
        projection.weight.zero_()
        projection.bias.zero_()
