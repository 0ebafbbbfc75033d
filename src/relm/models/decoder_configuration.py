"""The switches of the decoder, which each of its architectures sets. Imports no torch."""

from __future__ import annotations

from typing import Protocol


class DecoderConfig(Protocol):
    """The properties of an architecture that the decoder reads; it reads nothing else, not even the architecture's name."""

    @property
    def layers(self) -> int:
        """Return the count of blocks."""

    @property
    def heads(self) -> int:
        """Return the count of attention heads, which divides the width."""

    @property
    def key_value_heads(self) -> int:
        """Return the count of heads of keys and values, each of which so many heads of queries share (Ainslie et al. 2023)."""

    @property
    def hidden_size(self) -> int:
        """Return the width of the residual stream."""

    @property
    def intermediate_size(self) -> int:
        """Return the width between the projections of the feed-forward sublayer."""

    @property
    def positions(self) -> int:
        """Return the length of the longest sequence."""

    @property
    def vocabulary_size(self) -> int:
        """Return the rows of the embedding."""

    @property
    def position_encoding(self) -> str:
        """Return learnt (an embedding of each position), rotary (Su et al. 2021) or half_rotary (`half_rotary_angles`)."""

    @property
    def rotary_base(self) -> float:
        """Return the base of the wavelengths of rotary positions."""

    @property
    def normalisation(self) -> str:
        """Return layer_norm (Ba et al. 2016) or rms_norm (Zhang and Sennrich 2019)."""

    @property
    def norm_epsilon(self) -> float:
        """Return the constant that normalisations add to the variance or mean square."""

    @property
    def feed_forward(self) -> str:
        """Return gelu_tanh, gelu_erf, relu_squared (two projections around that activation) or swiglu (Shazeer 2020)."""

    @property
    def embedding_norm(self) -> bool:
        """Return whether the token embedding is normalised before the first block."""

    @property
    def query_key_norm(self) -> bool:
        """Return whether each head's queries and keys are divided by their root mean square (Henry et al. 2020)."""

    @property
    def attention_scale(self) -> float | None:
        """Return the factor of attention's logits; None: 1 / sqrt(head size)."""

    @property
    def biases(self) -> bool:
        """Return whether projections and layer normalisations have biases."""

    @property
    def tied_head(self) -> bool:
        """Return whether the projection to the vocabulary shares the weights of the token embedding."""

    @property
    def head_bias(self) -> bool:
        """Return whether the projection to the vocabulary has a bias, for which it must not be tied."""

    @property
    def logit_softcap(self) -> float | None:
        """Return the limit of the logits, to which `softcapped` bends them; None: no limit."""

    @property
    def dropout(self) -> float:
        """Return the dropout rate of embeddings, attention probabilities and residuals."""

    @property
    def initializer_range(self) -> float:
        """Return the standard deviation of the initial weights."""

    @property
    def scaled_projections(self) -> tuple[str, ...]:
        """Return the ends of the names of matrices whose initial standard deviation is divided by sqrt(2 layers)."""
