"""Model architectures: a section of recipes for each family, and the facts on each architecture.

To add one, declare it with a section that has ``architecture: Literal["NAME"]``, and give the declaration to
`register_architecture`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import Registry, rebuild_sections
from relm.recipes.section import Section, SectionOf

Rate = Annotated[float, Field(ge=0, lt=1)]
# Layers, heads and width of the smoke twin's model.
TWIN_LAYERS, TWIN_HEADS, TWIN_WIDTH = 2, 2, 64


@dataclass(frozen=True)
class ArchitectureDeclaration:
    """The facts on an architecture, and references to the code of its models.

    It can be trained with every objective that labels a term of its loss.
    """

    name: str
    """As recipes and `config.json` have it."""
    section: "type[Sizes]"
    """Its keys in recipes."""
    auto_class: str
    """The class of `transformers` that loads it."""
    pipeline: str
    """The task, in the hub's words, that its models are for."""
    model: str
    """A subclass of `relm.models.contract.LanguageModel`, built from a configuration."""
    configuration: str
    """A function that returns a model's configuration, a frozen dataclass whose `architecture` is the declared name. Its
    arguments are the section's keys with the vocabulary's size, the tokenizer's special tokens (name -> id or None), and the
    terms of the loss."""
    weights: str
    """A function from a configuration to records of its parameters, see `relm.models.counting`; imports no torch."""
    products: str
    """A function (configuration, lengths of a sequence) -> records of its matrix products; imports no torch."""
    terms: tuple[str, ...]
    """Terms that its models' loss can have."""
    twin_sizes: Mapping[str, Any] = field(default_factory=dict)
    """Key of the section -> its value in the smoke twin; layers, heads, width, positions and vocabulary shrink anyway."""


ARCHITECTURES = Registry[ArchitectureDeclaration]("architecture")


class Sizes(Section):
    """Keys that every family has, beside `architecture`."""

    layers: int = Field(gt=0)
    """Transformer blocks; of an encoder and decoder, in each."""
    heads: int = Field(gt=0)
    """Attention heads; where positions are learnt, they divide hidden_size."""
    hidden_size: int = Field(gt=0)
    """Width of the residual stream."""
    vocabulary_size: int | None = Field(default=None, gt=0)
    """Rows of the embedding; null: the tokenizer's size."""

    @property
    def declaration(self) -> ArchitectureDeclaration:
        """The facts on the architecture."""
        return ARCHITECTURES[self.architecture]  # type: ignore[attr-defined]  # each family has its own names

    @property
    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence; None: any length will do."""
        return None

    @property
    def generates(self) -> bool:
        """Whether it writes text, and so has a `generation_config.json`."""
        return self.declaration.pipeline != "fill-mask"

    @property
    def sizes_in_words(self) -> str:
        """Layers, heads, width, and the longest sequence."""
        words = f"{self.layers} layers, {self.heads} heads, width {self.hidden_size}"
        return words if self.longest_sequence is None else f"{words}, {self.longest_sequence} positions"


class LearntPositions(Sizes):
    """Keys of the families that learn a vector for each position."""

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


Architecture = Annotated[
    Gpt2Architecture | BertArchitecture | T5Architecture,
    SectionOf("architecture", lambda: {architecture.name: architecture.section for architecture in ARCHITECTURES}),
]

_GPT2 = ArchitectureDeclaration(
    name="gpt2",
    section=Gpt2Architecture,
    auto_class="AutoModelForCausalLM",
    pipeline="text-generation",
    model="relm.models.gpt2:Gpt2",
    configuration="relm.models.gpt2_configuration:gpt2_configuration",
    weights="relm.models.gpt2_counting:gpt2_weights",
    products="relm.models.gpt2_counting:gpt2_products",
    terms=("next_token",),
)
_BERT = ArchitectureDeclaration(
    name="bert",
    section=BertArchitecture,
    auto_class="AutoModelForMaskedLM",
    pipeline="fill-mask",
    model="relm.models.bert:Bert",
    configuration="relm.models.bert_configuration:bert_configuration",
    weights="relm.models.bert_counting:bert_weights",
    products="relm.models.bert_counting:bert_products",
    terms=("masked_token", "next_sentence"),
    twin_sizes={"intermediate_size": None},
)
_T5 = ArchitectureDeclaration(
    name="t5",
    section=T5Architecture,
    auto_class="AutoModelForSeq2SeqLM",
    pipeline="text2text-generation",
    model="relm.models.t5:T5",
    configuration="relm.models.t5_configuration:t5_configuration",
    weights="relm.models.t5_counting:t5_weights",
    products="relm.models.t5_counting:t5_products",
    terms=("target_token",),
    twin_sizes={"decoder_layers": None, "head_size": TWIN_WIDTH // TWIN_HEADS, "intermediate_size": 2 * TWIN_WIDTH},
)
for _declaration in (_GPT2, _BERT, replace(_BERT, name="roberta"), _T5, replace(_T5, name="mt5")):
    ARCHITECTURES.register(_declaration)


def register_architecture(declaration: ArchitectureDeclaration) -> None:
    """Make an architecture known to recipes."""
    ARCHITECTURES.register(declaration)
    rebuild_sections()


def names_with(section: type[Sizes]) -> tuple[str, ...]:
    """Return the names of the architectures whose section in recipes is the given one."""
    return tuple(architecture.name for architecture in ARCHITECTURES if architecture.section is section)
