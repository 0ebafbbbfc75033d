"""Llama: the decoder with rotary positions and a gated feed-forward sublayer, as ``LlamaForCausalLM`` on disk.

Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models". Imports nothing of this package except
`relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from relm.models.configuration import folder_config
from relm.models.decoder import Block, Decoder
from relm.models.llama_configuration import FREE_FIELDS, LlamaConfig
from relm.models.weights import read_weights, write_folder

# Names in files -> names of the module, before and in a layer. Queries, keys and values are one matrix in the module.
_NAMES = {
    "model.embed_tokens.weight": "transformer.wte.weight",
    "model.norm.weight": "transformer.ln_f.weight",
    "lm_head.weight": "lm_head.weight",
}
_NORMS = {"input_layernorm.weight": "ln_1.weight", "post_attention_layernorm.weight": "ln_2.weight"}
_MATRICES = {
    "self_attn.o_proj.weight": "attn.c_proj.weight",
    "mlp.gate_proj.weight": "mlp.c_gate.weight",
    "mlp.up_proj.weight": "mlp.c_fc.weight",
    "mlp.down_proj.weight": "mlp.c_proj.weight",
}
_PARTS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_WHOLE = "attn.c_attn.weight"


class Llama(Decoder):
    """A Llama language model, from token ids to logits of each next token."""

    config: LlamaConfig

    @classmethod
    def from_folder(cls, folder: Path, expected: LlamaConfig | None = None) -> Llama:
        """Load the model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        Args:
            folder: nothing in it is executed or unpickled.
            expected: the architecture that the weights must fit, and the dropout to train them with; None: the folder's.

        Raises:
            ValueError: the architecture is another one, or parameters are missing, unknown, or of another shape.
            OSError: a file is absent.
        """
        model = cls(folder_config(folder, LlamaConfig, expected, FREE_FIELDS))
        copies = {"lm_head.weight": "model.embed_tokens.weight"} if model.config.tied_head else {}
        model.load_huggingface(read_weights(folder, model.huggingface_weights(), _published_name, copies, {}))
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json`, `generation_config.json` and `model.safetensors` (float32) into an existing folder.

        Args:
            tokens: ids of special tokens, such as `bos_token_id` and `eos_token_id`.
        """
        write_folder(folder, self.config.to_huggingface(), tokens, self.huggingface_weights(), generates=True)

    def huggingface_weights(self) -> dict[str, Tensor]:
        """Return the weights under the names of `LlamaForCausalLM`, whose matrices are (out, in)."""
        own = self.state_dict()
        found = {published: own[name] for published, name in _NAMES.items() if name in own}
        for layer in range(self.config.layers):
            theirs, ours = _prefixes(layer)
            attention = cast(Block, self.transformer.h[layer]).attn
            parts = own[ours + _WHOLE].t().split(attention.widths)
            found.update({theirs + name: part for name, part in zip(_PARTS, parts)})
            found.update({theirs + published: own[ours + name].t() for published, name in _MATRICES.items()})
            found.update({theirs + published: own[ours + name] for published, name in _NORMS.items()})
        return found

    def load_huggingface(self, weights: Mapping[str, Tensor]) -> None:
        """Set the weights from those of `huggingface_weights`."""
        own = {name: weights[published] for published, name in _NAMES.items() if published in weights}
        for layer in range(self.config.layers):
            theirs, ours = _prefixes(layer)
            own[ours + _WHOLE] = torch.cat([weights[theirs + name] for name in _PARTS]).t()
            own.update({ours + name: weights[theirs + published].t() for published, name in _MATRICES.items()})
            own.update({ours + name: weights[theirs + published] for published, name in _NORMS.items()})
        self.load_state_dict(own)


def _prefixes(layer: int) -> tuple[str, str]:
    """Return the beginnings of a layer's names in files and in the module."""
    return f"model.layers.{layer}.", f"transformer.h.{layer}."


def _published_name(name: str) -> str | None:
    """Return a name in a file unchanged; None for the wavelengths of rotary positions, which older files hold as buffers."""
    return None if name.endswith("rotary_emb.inv_freq") else name
