"""The architecture of GPT-2, and what `config.json` says of it. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from relm.models.configuration import HUGGINGFACE_ACTIVATIONS, Published, own_switches, require_consistent

# Two models that differ in these alone have interchangeable weights.
FREE_FIELDS = ("dropout", "initializer_range")
_OWN_FIELDS = ("biases",)


@dataclasses.dataclass(frozen=True)
class Gpt2Config:
    """The architecture: what `config.json` says, in this project's words.

    Raises:
        ValueError: the heads do not divide the width, or the activation is unknown.
    """

    architecture = "gpt2"
    """As `config.json` names it."""

    layers: int
    heads: int
    hidden_size: int
    positions: int
    """The longest sequence."""
    vocabulary_size: int
    activation: str = "gelu_tanh"
    """gelu_tanh: the approximation of the original; gelu_erf: the exact one."""
    dropout: float = 0.1
    """On embeddings, attention and residuals alike."""
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    biases: bool = True
    """Of projections and normalisations. `transformers` has no GPT-2 without; there they are zeros, and learn if trained on."""

    def __post_init__(self) -> None:
        require_consistent(self, self.heads, self.hidden_size, self.activation)

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Gpt2Config:
        """The architecture in a `config.json` of `GPT2LMHeadModel`.

        Raises:
            ValueError: it describes a model that this class cannot be; names the key.
        """
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
        """The content of `config.json`, without the ids of special tokens, which belong to the tokenizer."""
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
    """Return the configuration of a GPT-2; arguments as of `relm.recipes.architectures.ArchitectureDeclaration`."""
    return Gpt2Config(**{key: value for key, value in settings.items() if key != "architecture"})
