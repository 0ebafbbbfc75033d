"""The switches of the decoder, which each of its architectures sets. Imports no torch."""

from __future__ import annotations

from typing import Any


class DecoderConfig:
    """The attributes that the decoder reads of an architecture; it reads nothing else, not even the architecture's name.

    An architecture is a frozen dataclass. Its fields set some of them, its class sets others, and `derive` the rest.
    """

    layers: int
    """Number of blocks."""
    heads: int
    """Number of attention heads, which divides the width."""
    key_value_heads: int
    """Number of heads of keys and values, each shared by the same number of query heads (Ainslie et al. 2023)."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width between the projections of the feed-forward sublayer."""
    positions: int
    """Length of the longest sequence."""
    vocabulary_size: int
    """Rows of the embedding."""
    position_encoding: str
    """learnt (an embedding of each position), rotary (Su et al. 2021) or half_rotary (`half_rotary_angles`)."""
    rotary_base: float = 0.0
    """Base of the wavelengths of rotary positions."""
    normalisation: str = "rms_norm"
    """layer_norm (Ba et al. 2016) or rms_norm (Zhang and Sennrich 2019)."""
    norm_epsilon: float
    """Constant that normalisations add to the variance or mean square."""
    feed_forward: str
    """gelu_tanh, gelu_erf, relu_squared (two projections around that activation) or swiglu (Shazeer 2020)."""
    embedding_norm: bool = False
    """Normalisation of the token embedding before the first block."""
    query_key_norm: bool = False
    """Division of each head's queries and keys by their root mean square (Henry et al. 2020)."""
    attention_scale: float | None = None
    """Factor of attention's logits; None: 1 / sqrt(head size)."""
    biases: bool
    """Biases in projections and layer normalisations."""
    tied_head: bool
    """True: the projection to the vocabulary shares the weights of the token embedding."""
    head_bias: bool = False
    """A bias in the projection to the vocabulary, which must not be tied then."""
    logit_softcap: float | None = None
    """Limit of the logits, for `softcapped`; None: no limit."""
    dropout: float
    """Dropout rate of embeddings, attention probabilities and residuals."""
    initializer_range: float
    """Standard deviation of the initial weights."""
    scaled_projections: tuple[str, ...] = ()
    """Ends of the names of matrices whose initial standard deviation is divided by sqrt(2 layers)."""

    def derive(self, **values: Any) -> None:
        """Set attributes that follow from the fields, and so are not fields themselves."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
