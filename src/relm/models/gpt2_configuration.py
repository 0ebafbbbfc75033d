"""The architecture of GPT-2, read from and written to `config.json`. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from relm.models.configuration import HUGGINGFACE_ACTIVATIONS, Published, own_switches, require_consistent
from relm.models.decoder_configuration import DecoderConfig

_OWN_FIELDS = ("biases",)


@dataclasses.dataclass(frozen=True)
class Gpt2Config(DecoderConfig):
    """The architecture: the keys of `config.json` under this project's names."""

    architecture = "gpt2"
    free_fields = ("dropout", "initializer_range", "initialisation")

    layers: int
    heads: int
    hidden_size: int
    positions: int
    """The longest sequence."""
    vocabulary_size: int
    activation: str = "gelu_tanh"
    """gelu_tanh: the approximation of the original; gelu_erf: the exact one."""
    dropout: float = 0.1
    """Dropout on embeddings, attention and residuals alike."""
    initializer_range: float = 0.02
    initialisation: str = "normal"
    """normal, or the draws of another program: llm_c, llm_c_bfloat16."""
    layer_norm_epsilon: float = 1e-5
    biases: bool = True
    """Biases of projections and normalisations. Without, a folder for `transformers` has zeros, which learn if it trains on."""

    position_encoding = "learnt"
    normalisation = "layer_norm"
    tied_head = True
    scaled_projections = ("c_proj.weight",)  # those into the residual stream

    def __post_init__(self) -> None:
        require_consistent(self, self.heads, self.hidden_size, self.activation)
        self.derive(norm_epsilon=self.layer_norm_epsilon, feed_forward=self.activation)
        self.derive(key_value_heads=self.heads, intermediate_size=4 * self.hidden_size)

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Gpt2Config:
        """Read the architecture in a `config.json` of `GPT2LMHeadModel`."""
        published = Published(config)
        hidden_size = published.whole("n_embd", 768)
        dropout = published.number("resid_pdrop", 0.1)
        published.required("model_type", "gpt2", ("gpt2",))
        published.required("n_inner", None, (None, 4 * hidden_size))
        published.required("tie_word_embeddings", True, (True,))
        published.required("scale_attn_weights", True, (True,))
        published.required("scale_attn_by_inverse_layer_idx", False, (False,))
        published.required("add_cross_attention", False, (False,))
        published.required("embd_pdrop", 0.1, (dropout,))
        published.required("attn_pdrop", 0.1, (dropout,))
        return cls(
            layers=published.whole("n_layer", 12),
            heads=published.heads("n_head", 12, "n_embd", hidden_size),
            hidden_size=hidden_size,
            positions=published.whole("n_positions", 1024),
            vocabulary_size=published.whole("vocab_size", 50257),
            activation=published.activation("activation_function", "gelu_new"),
            dropout=dropout,
            initializer_range=published.number("initializer_range", 0.02),
            layer_norm_epsilon=published.number("layer_norm_epsilon", 1e-5),
            **published.own(_OWN_FIELDS),
        )

    def to_huggingface(self) -> dict[str, Any]:
        """Return the content of `config.json`, without the ids of special tokens, which belong to the tokenizer."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocabulary_size,
            "n_positions": self.positions,
            "n_ctx": self.positions,
            "n_embd": self.hidden_size,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": None,
            "activation_function": HUGGINGFACE_ACTIVATIONS[self.activation],
            "resid_pdrop": self.dropout,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": True,
            **own_switches(self, _OWN_FIELDS),
        }


def gpt2_configuration(settings: Mapping[str, Any], special: Mapping[str, int | None], terms: Collection[str]) -> Gpt2Config:
    """Return the configuration of a GPT-2; `relm.recipes.architectures.ArchitectureDeclaration` describes the arguments."""
    return Gpt2Config(**{key: value for key, value in settings.items() if key != "architecture"})
