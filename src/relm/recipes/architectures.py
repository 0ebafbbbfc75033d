"""What is trained: the sections of a recipe for each family of models."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from relm.recipes.section import Section

Rate = Annotated[float, Field(ge=0, lt=1)]


class Sizes(Section):
    """What every family has."""

    auto_class: ClassVar[str]
    """The class of `transformers` that loads it."""
    pipeline: ClassVar[str]
    """What it is for, in the hub's words."""

    layers: int = Field(gt=0)
    """Transformer blocks; of an encoder and decoder, in each."""
    heads: int = Field(gt=0)
    """Attention heads; where positions are learnt, they divide hidden_size."""
    hidden_size: int = Field(gt=0)
    """Width of the residual stream."""
    vocabulary_size: int | None = Field(default=None, gt=0)
    """Rows of the embedding; null: the tokenizer's size."""

    @property
    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence; None: any length will do."""
        return None

    @property
    def generates(self) -> bool:
        """Whether it writes text, and so has a `generation_config.json`."""
        return self.pipeline != "fill-mask"

    @property
    def sizes_in_words(self) -> str:
        """Layers, heads, width, and how long a sequence may be."""
        words = f"{self.layers} layers, {self.heads} heads, width {self.hidden_size}"
        return words if self.longest_sequence is None else f"{words}, {self.longest_sequence} positions"


class LearntPositions(Sizes):
    """What the families have that learn a vector for each position."""

    positions: int = Field(gt=0)
    """The longest sequence."""

    @property
    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence."""
        return self.positions

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        return self


class Gpt2Architecture(LearntPositions):
    """A GPT-2: decoder-only, learnt positions, normalisation first, head tied to the token embedding."""

    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    pipeline: ClassVar[str] = "text-generation"

    architecture: Literal["gpt2"]
    """Which family."""
    activation: Literal["gelu_tanh", "gelu_erf"] = "gelu_tanh"
    """GPT-2's is the tanh approximation; Graphcore's the exact one."""
    biases: bool = True
    """In projections and normalisations."""
    dropout: Rate = 0.1
    """On embeddings, attention and residuals alike."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; residual projections get it divided by sqrt(2 layers)."""
    layer_norm_epsilon: float = Field(default=1e-5, gt=0)
    """Added to the variance."""


class BertArchitecture(LearntPositions):
    """A BERT or RoBERTa: an encoder with learnt positions, normalisation last, a head tied to the token embedding."""

    auto_class: ClassVar[str] = "AutoModelForMaskedLM"
    pipeline: ClassVar[str] = "fill-mask"

    architecture: Literal["bert", "roberta"]
    """Which family: RoBERTa counts positions from another number on, and its files have other names."""
    intermediate_size: int | None = Field(default=None, gt=0)
    """Width between the two projections of the feed-forward sublayer; null: four times hidden_size."""
    type_vocabulary_size: int = Field(default=2, gt=0)
    """Kinds of segments; RoBERTa has one."""
    activation: Literal["gelu_erf", "gelu_tanh"] = "gelu_erf"
    """The exact GELU, as published, or its tanh approximation."""
    hidden_dropout: Rate = 0.1
    """On embeddings and on what is added to the residual stream."""
    attention_dropout: Rate = 0.1
    """On attention probabilities."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; of truncated ones, before truncation."""
    initialisation: Literal["normal", "truncated_normal"] = "normal"
    """normal: as transformers; truncated_normal: as TensorFlow, nothing beyond two sigma."""
    layer_norm_epsilon: float = Field(default=1e-12, gt=0)
    """Added to the variance: 1e-12 in BERT, 1e-5 in RoBERTa, 1e-3 in Graphcore's BERT for TensorFlow 1."""
    query_key_value_bias: bool = True
    """In the projections before attention; Graphcore's BERT has none."""
    attention_projection_bias: bool = True
    """In the projection after attention."""
    transform_layer: bool = True
    """A projection, activation and normalisation before the vocabulary; Graphcore's recipes leave it out."""
    prediction_bias: bool = True
    """A number for each token, added to its logit."""


class T5Architecture(Sizes):
    """A T5 or mT5: encoder and decoder, relative positions, normalisation first, no biases."""

    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"
    pipeline: ClassVar[str] = "text2text-generation"

    architecture: Literal["t5", "mt5"]
    """Which family: the same model under two names."""
    decoder_layers: int | None = Field(default=None, gt=0)
    """Blocks of the decoder; null: as many as the encoder has."""
    head_size: int = Field(default=64, gt=0)
    """Width of a head; all heads together need not be as wide as the residual stream."""
    intermediate_size: int = Field(gt=0)
    """Width between the projections of the feed-forward sublayer."""
    relative_attention_buckets: int = Field(default=32, ge=4)
    """Groups of distances; the encoder uses half of them for each direction."""
    relative_attention_distance: int = Field(default=128, gt=1)
    """From here on, all distances are one group."""
    dropout: Rate = 0.1
    """Everywhere the original has it."""
    tied_head: bool = False
    """Whether the projection to the vocabulary is the embedding: so in T5 1.0, not in T5 1.1 and mT5."""
    feed_forward: Literal["gated_gelu", "relu"] = "gated_gelu"
    """gated_gelu: T5 1.1 and mT5; relu: T5 1.0."""
    initializer_factor: float = Field(default=1.0, gt=0)
    """What all initial weights are multiplied by."""
    layer_norm_epsilon: float = Field(default=1e-6, gt=0)
    """Added to the mean square."""


def _architecture(value: Any) -> Any:
    return value.get("architecture") if isinstance(value, dict) else getattr(value, "architecture", None)


Architecture = Annotated[
    Annotated[Gpt2Architecture, Tag("gpt2")]
    | Annotated[BertArchitecture, Tag("bert")]
    | Annotated[BertArchitecture, Tag("roberta")]
    | Annotated[T5Architecture, Tag("t5")]
    | Annotated[T5Architecture, Tag("mt5")],
    Discriminator(
        _architecture,
        custom_error_type="architecture",
        custom_error_message="expected architecture: gpt2, bert, roberta, t5 or mt5",
    ),
]
# Architecture -> the objectives that it can be trained with.
OBJECTIVES = {
    "gpt2": ("causal",),
    "bert": ("masked",),
    "roberta": ("masked",),
    "t5": ("seq2seq", "span_corruption"),
    "mt5": ("seq2seq", "span_corruption"),
}
