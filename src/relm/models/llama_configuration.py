"""The architecture of Llama, read from and written to `config.json`. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from relm.models.configuration import Published, own_switches, require_consistent
from relm.models.decoder_configuration import DecoderConfig

_OWN_FIELDS = ("dropout", "initialisation")
# Distribution of the initial weights -> the matrices that are scaled. The comment in llama2.c's model.py speaks of GPT-2's
# projections into the residual stream, but of the feed-forward's it scales `w3`, which the gate multiplies, and not `w2`.
_SCALED = {"normal": (), "llama2_c": ("attn.c_proj.weight", "mlp.c_fc.weight")}


@dataclasses.dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """The architecture: the keys of `config.json` under this project's names."""

    architecture = "llama"
    free_fields = ("dropout", "initializer_range", "initialisation")

    layers: int
    heads: int
    hidden_size: int
    intermediate_size: int
    positions: int
    """The longest sequence."""
    vocabulary_size: int
    key_value_heads: int
    """Heads of keys and values; equal groups of heads share one."""
    rotary_base: float = 10000.0
    tied_head: bool = False
    dropout: float = 0.0
    """Dropout on embeddings, attention and residuals alike; `transformers` has it only on attention."""
    initializer_range: float = 0.02
    initialisation: str = "normal"
    """normal: all matrices alike, as in `transformers`; llama2_c: some scaled."""
    rms_norm_epsilon: float = 1e-6

    position_encoding = "rotary"
    feed_forward = "swiglu"
    biases = False

    def __post_init__(self) -> None:
        require_consistent(self, self.heads, self.hidden_size, "gelu_tanh")
        if self.heads % self.key_value_heads:
            raise ValueError(f"key_value_heads is {self.key_value_heads}, expected a divisor of heads, {self.heads}")
        if self.hidden_size // self.heads % 2:
            raise ValueError(
                f"heads is {self.heads}, expected heads of an even width, whose pairs can be turned, in hidden_size, "
                f"{self.hidden_size}"
            )
        if self.initialisation not in _SCALED:
            raise ValueError(f"initialisation is {self.initialisation!r}, expected {' or '.join(_SCALED)}")
        self.derive(norm_epsilon=self.rms_norm_epsilon, scaled_projections=_SCALED[self.initialisation])

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Read the architecture in a `config.json` of `LlamaForCausalLM`."""
        published = Published(config)
        hidden_size = published.whole("hidden_size", 4096)
        own = published.own(_OWN_FIELDS)
        published.required("model_type", "llama", ("llama",))
        published.required("hidden_act", "silu", ("silu",))
        published.required("attention_bias", False, (False,))
        published.required("mlp_bias", False, (False,))
        published.required("attention_dropout", 0.0, (own.get("dropout", 0.0),))
        heads = published.heads("num_attention_heads", 32, "hidden_size", hidden_size)
        published.required("head_dim", None, (None, hidden_size // heads))
        # The key is null in older files of models whose heads share nothing.
        shared = "num_key_value_heads" if config.get("num_key_value_heads") is not None else "num_attention_heads"
        return cls(
            layers=published.whole("num_hidden_layers", 32),
            heads=heads,
            hidden_size=hidden_size,
            intermediate_size=published.whole("intermediate_size", 11008),
            positions=published.whole("max_position_embeddings", 2048),
            vocabulary_size=published.whole("vocab_size", 32000),
            key_value_heads=published.whole(shared, 32),
            rotary_base=_rotary_base(config),
            tied_head=published.required("tie_word_embeddings", False, (False, True)),
            initializer_range=published.number("initializer_range", 0.02),
            rms_norm_epsilon=published.number("rms_norm_eps", 1e-6),
            **own,
        )

    def to_huggingface(self) -> dict[str, Any]:
        """Return the content of `config.json`, without the ids of special tokens, which belong to the tokenizer."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.hidden_size // self.heads,
            "hidden_act": "silu",
            "max_position_embeddings": self.positions,
            "rope_theta": self.rotary_base,  # the key that all versions of `transformers` read
            "rms_norm_eps": self.rms_norm_epsilon,
            "initializer_range": self.initializer_range,
            "attention_bias": False,
            "attention_dropout": self.dropout,
            "mlp_bias": False,
            "tie_word_embeddings": self.tied_head,
            **own_switches(self, _OWN_FIELDS),
        }


def _rotary_base(config: Mapping[str, Any]) -> float:
    """Return the base of rotary positions, which newer files have in a mapping with the kind of rotation."""
    options = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    options.update(config.get("rope_parameters") or {})
    options = {"rope_type": options.pop("type", "default"), **options}
    published = Published(options)
    published.required("rope_type", "default", ("default",))
    return published.number("rope_theta", 10000.0)


def llama_configuration(settings: Mapping[str, Any], special: Mapping[str, int | None], terms: Collection[str]) -> LlamaConfig:
    """Return the configuration of a Llama; `relm.recipes.architectures.ArchitectureDeclaration` describes the arguments."""
    own = {key: value for key, value in settings.items() if key not in ("architecture", "multiple_of")}
    own["key_value_heads"] = own["key_value_heads"] or own["heads"]
    own["intermediate_size"] = own["intermediate_size"] or feed_forward_width(own["hidden_size"], settings["multiple_of"])
    return LlamaConfig(**own)


def feed_forward_width(hidden_size: int, multiple_of: int) -> int:
    """Return the width between a Llama's feed-forward projections: 2/3 of four times the model's, rounded up to a multiple.

    Three matrices then have about as many weights as two of four times the width (Touvron et al. 2023).

    >>> feed_forward_width(4096, 256)
    11008
    """
    return -(-(8 * hidden_size // 3) // multiple_of) * multiple_of
