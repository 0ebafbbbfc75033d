"""The architecture of T5 and mT5, read from and written to `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from relm.models.configuration import Published, require_consistent

_ARCHITECTURES = {"t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration"}
# This project's name -> the key feed_forward_proj, and the keys that `transformers` derives from it and also writes.
_FEED_FORWARDS = {
    "gated_gelu": {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True},
    "relu": {"feed_forward_proj": "relu", "dense_act_fn": "relu", "is_gated_act": False},
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "t5": {"d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128, "feed_forward": "relu"},
    "mt5": {"d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": 250112, "feed_forward": "gated_gelu"},
}

# Token ids start at 0, whereas `require_consistent` expects fields of type int to be at least 1.
TokenId = int


@dataclasses.dataclass(frozen=True)
class T5Config:
    """The architecture: the keys of `config.json` under this project's names."""

    free_fields = ("dropout", "initializer_factor")

    layers: int
    """Layers of the encoder."""
    heads: int
    head_size: int
    """Width of a head; all heads together need not be as wide as the residual stream."""
    hidden_size: int
    intermediate_size: int
    """Width between the projections of the feed-forward sublayer."""
    vocabulary_size: int
    """Rows of the embedding. mT5 has 250,112 for 250,100 pieces: a multiple of 128, whose last twelve rows no text uses."""
    decoder_layers: int | None = None
    """None: as many as `layers`."""
    relative_attention_buckets: int = 32
    """Groups of distances; the encoder uses half of them for each direction."""
    relative_attention_distance: int = 128
    """All distances from this one on are one group."""
    dropout: float = 0.1
    """Dropout on embeddings, attention, within the feed-forward sublayer, on outputs of sublayers and on a stack's output."""
    tied_head: bool = False
    """True: the projection to the vocabulary is the embedding, as in T5 1.0, not in T5 1.1 and mT5."""
    feed_forward: str = "gated_gelu"
    """gated_gelu: two projections, the tanh approximation of GELU on one (T5 1.1 and mT5); relu: one (T5 1.0)."""
    initializer_factor: float = 1.0
    """Factor of all initial weights."""
    layer_norm_epsilon: float = 1e-6
    pad_token_id: TokenId = 0
    """The decoder's input where no label is scored."""
    decoder_start_token_id: TokenId = 0
    """The decoder's first input; the padding token, in published models."""
    family: str = "t5"
    """t5 or mt5, as in `config.json`. A tied head is scaled in t5 only."""

    def __post_init__(self) -> None:
        if self.decoder_layers is not None and self.decoder_layers < 1:
            raise ValueError(f"decoder_layers is {self.decoder_layers!r}, expected a whole number from 1 on, or none")
        if self.decoder_layers == self.layers:  # so that one architecture is one value
            object.__setattr__(self, "decoder_layers", None)
        # A head may have any width, so the heads need not divide one.
        require_consistent(self, self.heads, self.heads, "gelu_tanh")
        for name, allowed in (("family", tuple(_ARCHITECTURES)), ("feed_forward", tuple(_FEED_FORWARDS))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {' or '.join(allowed)}")
        if self.relative_attention_buckets < 4:
            raise ValueError(f"relative_attention_buckets is {self.relative_attention_buckets}, expected at least 4")
        exact = self.relative_attention_buckets // 2
        if self.relative_attention_distance <= exact:
            found = f"relative_attention_distance is {self.relative_attention_distance}"
            raise ValueError(f"{found}, expected more than {exact}, half of relative_attention_buckets")
        for name in ("pad_token_id", "decoder_start_token_id"):
            if not 0 <= getattr(self, name) < self.vocabulary_size:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of the {self.vocabulary_size} tokens")

    @property
    def scaled_head(self) -> bool:
        """Return True if the decoder's output is divided by the root of its width before the projection to the vocabulary.

        T5 does so where the head is tied. No published mT5 has such a head; with one, `transformers` 4 divides as well and 5,
        which this follows, does not.
        """
        return self.tied_head and self.family == "t5"

    @property
    def architecture(self) -> str:
        """Return the architecture's name in `config.json`."""
        return self.family

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> T5Config:
        """Read the architecture in a `config.json` of `T5ForConditionalGeneration` or `MT5ForConditionalGeneration`.

        `transformers` 5 always writes that the head is tied; the weights then decide (`T5.from_folder`).
        """
        published = Published(config)
        family = published.required("model_type", "t5", tuple(_ARCHITECTURES))
        default = _DEFAULTS[family]
        published.required("is_encoder_decoder", True, (True,))
        published.required("is_decoder", False, (False,))
        layers = published.whole("num_layers", default["num_layers"])
        symmetric = config.get("num_decoder_layers") is None
        padding = published.whole("pad_token_id", 0, least=0)
        return cls(
            layers=layers,
            heads=published.whole("num_heads", default["num_heads"]),
            head_size=published.whole("d_kv", 64),
            hidden_size=published.whole("d_model", 512),
            intermediate_size=published.whole("d_ff", default["d_ff"]),
            vocabulary_size=published.whole("vocab_size", default["vocab_size"]),
            decoder_layers=None if symmetric else published.whole("num_decoder_layers", layers),
            relative_attention_buckets=published.whole("relative_attention_num_buckets", 32),
            relative_attention_distance=published.whole("relative_attention_max_distance", 128),
            dropout=published.number("dropout_rate", 0.1),
            tied_head=_tied_head(published, family),
            feed_forward=_feed_forward(published, default["feed_forward"]),
            initializer_factor=published.number("initializer_factor", 1.0),
            layer_norm_epsilon=published.number("layer_norm_epsilon", 1e-6),
            pad_token_id=padding,
            decoder_start_token_id=published.whole("decoder_start_token_id", padding, least=0),
            family=family,
        )

    def to_huggingface(self) -> dict[str, Any]:
        """Return the content of `config.json`, without the ids of special tokens that the model does not use itself."""
        return {
            "architectures": [_ARCHITECTURES[self.family]],
            "model_type": self.family,
            "is_encoder_decoder": True,
            "vocab_size": self.vocabulary_size,
            "d_model": self.hidden_size,
            "d_kv": self.head_size,
            "d_ff": self.intermediate_size,
            "num_layers": self.layers,
            "num_decoder_layers": self.decoder_layers or self.layers,
            "num_heads": self.heads,
            "relative_attention_num_buckets": self.relative_attention_buckets,
            "relative_attention_max_distance": self.relative_attention_distance,
            "dropout_rate": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_factor": self.initializer_factor,
            **_FEED_FORWARDS[self.feed_forward],
            "tie_word_embeddings": self.tied_head,
            **self.token_ids(),
        }

    def token_ids(self) -> dict[str, int]:
        """Return the ids of the tokens that the decoder reads though no text has them, under their keys in `config.json`."""
        return {"pad_token_id": self.pad_token_id, "decoder_start_token_id": self.decoder_start_token_id}


def _tied_head(published: Published, family: str) -> bool:
    """Return `tie_word_embeddings`, or in a T5 that `transformers` 5 wrote `scale_decoder_outputs`, its new name."""
    tied: bool = published.required("tie_word_embeddings", True, (True, False))
    if family == "mt5":
        return tied
    allowed = (True, False) if tied else (False,)
    scaled: bool = published.required("scale_decoder_outputs", tied, allowed)
    return scaled


def _feed_forward(published: Published, default: str) -> str:
    names = {keys["feed_forward_proj"]: name for name, keys in _FEED_FORWARDS.items()}
    name = names[published.required("feed_forward_proj", _FEED_FORWARDS[default]["feed_forward_proj"], tuple(names))]
    for key in ("dense_act_fn", "is_gated_act"):
        expected = _FEED_FORWARDS[name][key]
        published.required(key, expected, (expected,))
    return name


def t5_configuration(settings: Mapping[str, Any], special: Mapping[str, int | None], terms: Collection[str]) -> T5Config:
    """Return the configuration of a T5 or mT5, whose decoder begins with the token for padding.

    `relm.recipes.architectures.ArchitectureDeclaration` describes the arguments.
    """
    pad = special.get("pad") or 0
    sizes = {key: value for key, value in settings.items() if key != "architecture"}
    return T5Config(**sizes, family=settings["architecture"], pad_token_id=pad, decoder_start_token_id=pad)
