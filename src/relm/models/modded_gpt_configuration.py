"""The architecture of modded-nanogpt's optimization track, which `transformers` lacks. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from relm.models.configuration import Published, require_consistent
from relm.models.decoder_configuration import DecoderConfig

INITIALISATIONS = ("torch_linear", "zero_biases")


@dataclasses.dataclass(frozen=True)
class ModdedGptConfig(DecoderConfig):
    """The architecture: the keys of `config.json` under this project's names."""

    architecture = "modded_gpt"
    free_fields = ("initialisation",)

    layers: int
    heads: int
    hidden_size: int
    positions: int
    """The longest sequence."""
    vocabulary_size: int
    rotary_base: float = 1024.0
    attention_scale: float = 0.12
    logit_softcap: float = 15.0
    rms_norm_epsilon: float = 2.0**-23
    """The smallest step from 1 in float32, which torch's `rms_norm` adds by default."""
    initialisation: str = "zero_biases"

    position_encoding = "half_rotary"
    feed_forward = "relu_squared"
    embedding_norm = query_key_norm = biases = head_bias = True
    tied_head = False
    dropout = 0.0
    initializer_range = 1.0

    def __post_init__(self) -> None:
        require_consistent(self, self.heads, self.hidden_size, "gelu_tanh")
        if self.hidden_size // self.heads % 4:
            raise ValueError(
                f"heads is {self.heads}, expected heads whose width is a multiple of 4, half of which turns in pairs, in "
                f"hidden_size, {self.hidden_size}"
            )
        for name in ("rotary_base", "attention_scale", "logit_softcap", "rms_norm_epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a number above 0")
        if self.initialisation not in INITIALISATIONS:
            raise ValueError(f"initialisation is {self.initialisation!r}, expected {' or '.join(INITIALISATIONS)}")
        self.derive(norm_epsilon=self.rms_norm_epsilon, key_value_heads=self.heads, intermediate_size=4 * self.hidden_size)

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> ModdedGptConfig:
        """Read the architecture in a `config.json` that `to_huggingface` wrote."""
        published = Published(config)
        published.required("model_type", None, (cls.architecture,))
        numbers = ("rope_theta", "attention_scale", "logit_softcap", "rms_norm_eps")
        rotary_base, scale, softcap, epsilon = (published.number(key, 0.0) for key in numbers)
        hidden_size = published.whole("hidden_size", 0)
        return cls(
            layers=published.whole("num_hidden_layers", 0),
            heads=published.heads("num_attention_heads", 0, "hidden_size", hidden_size),
            hidden_size=hidden_size,
            positions=published.whole("max_position_embeddings", 0),
            vocabulary_size=published.whole("vocab_size", 0),
            rotary_base=rotary_base,
            attention_scale=scale,
            logit_softcap=softcap,
            rms_norm_epsilon=epsilon,
            initialisation=published.required("initialisation", None, INITIALISATIONS),
        )

    def to_huggingface(self) -> dict[str, Any]:
        """Return the content of `config.json`, without the ids of special tokens, which belong to the tokenizer."""
        return {
            "architectures": ["ModdedGpt"],
            "model_type": self.architecture,
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.positions,
            "rope_theta": self.rotary_base,
            "attention_scale": self.attention_scale,
            "logit_softcap": self.logit_softcap,
            "rms_norm_eps": self.rms_norm_epsilon,
            "initialisation": self.initialisation,
        }


def modded_gpt_configuration(
    settings: Mapping[str, Any], special: Mapping[str, int | None], terms: Collection[str]
) -> ModdedGptConfig:
    """Return a configuration; `relm.recipes.architectures.ArchitectureDeclaration` describes the arguments."""
    return ModdedGptConfig(**{key: value for key, value in settings.items() if key != "architecture"})
