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
    """Name in recipes and in `config.json`."""
    section: "type[Sizes]"
    """Section of recipes with its keys."""
    auto_class: str | None
    """Class of `transformers` that loads it; None: it has none."""
    pipeline: str
    """Pipeline tag of its models on the Hugging Face hub."""
    model: str
    """A subclass of `relm.models.contract.LanguageModel`, built from a configuration."""
    configuration: str
    """Function that returns a model's configuration, a frozen dataclass whose `architecture` is the declared name. Its
    arguments are the section's keys with the vocabulary's size, the tokenizer's special tokens (name -> id or None), and the
    terms of the loss (name -> count of classes, 0 where the classes are the tokens)."""
    tensors: str
    """Function (configuration, lengths of a sequence) -> records of its parameters and of what it multiplies by, see
    `relm.models.counting`; imports no torch."""
    activations: str | None = field(default=None, kw_only=True)
    """Function (configuration, lengths of a sequence, `relm.models.counting.Computing`) -> the activations of one sequence;
    imports no torch. None: they are unknown, and no micro-batch is chosen by them."""
    has_segments: bool = field(default=False, kw_only=True)
    """Its models have segments (`relm.models.segments`), which their tensors name, so that a pipeline can train them."""
    heads: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Head that a configuration names -> the class of its models, where that is not `model`."""
    terms: tuple[str, ...]
    """Terms that the loss of its models can have."""
    twin_sizes: Mapping[str, Any] = field(default_factory=dict)
    """Key of the section -> its value in the smoke twin; layers, heads, width, positions and vocabulary always shrink."""


ARCHITECTURES = Registry[ArchitectureDeclaration]("architecture")


class Sizes(Section):
    """Keys of every architecture, except `architecture`."""

    layers: int = Field(gt=0)
    """Number of Transformer blocks; with an encoder and a decoder, the number in each."""
    heads: int = Field(gt=0)
    """Number of attention heads; with learnt positions it must divide hidden_size."""
    hidden_size: int = Field(gt=0)
    """Width of the residual stream."""
    vocabulary_size: int | None = Field(default=None, gt=0)
    """Rows of the token embedding; null: the vocabulary size of the tokenizer."""

    @property
    def declaration(self) -> ArchitectureDeclaration:
        """The facts on the architecture."""
        return ARCHITECTURES[self.architecture]  # type: ignore[attr-defined]  # a Literal in each family

    @property
    def longest_sequence(self) -> int | None:
        """Length of the longest sequence in tokens; None: no limit."""
        return None

    @property
    def generates(self) -> bool:
        """True if the model generates text, and so has a `generation_config.json`."""
        return self.declaration.pipeline != "fill-mask"

    @property
    def summary(self) -> str:
        """Layers, heads, width and longest sequence, as reports show them."""
        text = f"{self.layers} layers, {self.heads} heads, width {self.hidden_size}"
        return text if self.longest_sequence is None else f"{text}, {self.longest_sequence} positions"


class LimitedLength(Sizes):
    """Keys of architectures with a longest sequence, and heads that share the width."""

    positions: int = Field(gt=0)
    """Length of the longest sequence in tokens; with learnt positions, the number of their embeddings."""

    @property
    def longest_sequence(self) -> int | None:
        """Length of the longest sequence in tokens."""
        return self.positions

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        return self


class Gpt2Architecture(LimitedLength):
    """A GPT-2: decoder-only, learnt positions, pre-layer normalisation, head tied to the token embedding."""

    architecture: Literal["gpt2"]
    """Name of the architecture."""
    activation: Literal["gelu_tanh", "gelu_erf"] = "gelu_tanh"
    """Activation function: the tanh approximation of GELU, as in GPT-2, or the exact GELU, as in Graphcore's GPT-2."""
    biases: bool = True
    """Projections and normalisations have biases."""
    dropout: Rate = 0.1
    """Dropout rate of embeddings, attention probabilities and residuals."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; that of residual projections is divided by sqrt(2 layers)."""
    initialisation: Literal["normal", "llm_c", "llm_c_bfloat16"] = "normal"
    """Draws of the initial weights, all of which are normal. llm_c: those of llm.c's train_gpt2.py, equal for the same seed (42
    in its code); llm_c_bfloat16: the same rounded to bfloat16, with which its train_gpt2.cu -e d12 begins."""
    layer_norm_epsilon: float = Field(default=1e-5, gt=0)
    """Constant added to the variance in layer normalisation."""


class LlamaArchitecture(LimitedLength):
    """A Llama: decoder-only, rotary positions, pre-layer RMS normalisation, gated feed-forward sublayer, no biases."""

    architecture: Literal["llama"]
    """Name of the architecture."""
    key_value_heads: int | None = Field(default=None, gt=0)
    """Number of heads of keys and values, each shared by equally many attention heads; null: as many as attention heads."""
    intermediate_size: int | None = Field(default=None, gt=0)
    """Width between the projections of the feed-forward sublayer; null: 2/3 of four times hidden_size, rounded up to a multiple
    of multiple_of."""
    multiple_of: int = Field(default=256, gt=0)
    """Divisor of the feed-forward sublayer's width, where intermediate_size is null."""
    rotary_base: float = Field(default=10000.0, gt=0)
    """Base of the wavelengths of rotary positions."""
    tied_head: bool = False
    """The projection to the vocabulary shares the weights of the embedding."""
    dropout: Rate = 0.0
    """Dropout rate of embeddings, attention probabilities and residuals."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""
    initialisation: Literal["normal", "llama2_c"] = "normal"
    """Distribution of the initial weights. normal: all matrices alike, as in transformers; llama2_c: the standard deviation of
    the projection after attention, and of the feed-forward's that the gate multiplies, is divided by sqrt(2 layers)."""
    rms_norm_epsilon: float = Field(default=1e-6, gt=0)
    """Constant added to the mean square in normalisation."""

    @model_validator(mode="after")
    def heads_fit(self) -> Self:
        if self.key_value_heads is not None and self.heads % self.key_value_heads:
            raise ValueError(f"key_value_heads ({self.key_value_heads}) must divide heads ({self.heads})")
        if self.hidden_size // self.heads % 2:
            raise ValueError(f"hidden_size ({self.hidden_size}) / heads ({self.heads}) must be even for rotary positions")
        return self


class ModdedGptArchitecture(LimitedLength):
    """The model of modded-nanogpt's optimization track: decoder-only, RMS normalisation of embeddings, queries and keys too,
    rotary positions in half of each head, squared ReLU, head with a bias and capped logits; not in transformers."""

    architecture: Literal["modded_gpt"]
    """Name of the architecture."""
    rotary_base: float = Field(default=1024.0, gt=0)
    """Base of the wavelengths of rotary positions."""
    attention_scale: float = Field(default=0.12, gt=0)
    """Factor of the logits of attention."""
    logit_softcap: float = Field(default=15.0, gt=0)
    """Limit to which the logits x of the vocabulary are bent: limit * x / sqrt(x ** 2 + limit ** 2)."""
    rms_norm_epsilon: float = Field(default=2.0**-23, gt=0)
    """Constant added to the mean square in normalisation; by default torch's own, float32's step from 1."""
    initialisation: Literal["zero_biases", "torch_linear"] = "zero_biases"
    """Draws of the initial weights; embedding normal, projections into the residual stream and head 0. zero_biases: other
    matrices normal with the variance of torch's linear layers, biases 0; torch_linear: matrices and biases as torch draws them,
    as in the track's entries before June 2026."""

    @model_validator(mode="after")
    def heads_fit(self) -> Self:
        if self.hidden_size // self.heads % 4:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) / heads ({self.heads}) must be a multiple of 4; half of it turns"
            )
        return self


class BertArchitecture(LimitedLength):
    """A BERT or RoBERTa: encoder-only, learnt positions, post-layer normalisation, head tied to the token embedding."""

    architecture: Literal["bert", "roberta"]
    """Name of the architecture; RoBERTa's first position has another index, and its weights have other names."""
    intermediate_size: int | None = Field(default=None, gt=0)
    """Width between the two projections of the feed-forward sublayer; null: four times hidden_size."""
    type_vocabulary_size: int = Field(default=2, gt=0)
    """Number of segment types; RoBERTa has one."""
    activation: Literal["gelu_erf", "gelu_tanh"] = "gelu_erf"
    """Activation function: the exact GELU, as published, or its tanh approximation."""
    hidden_dropout: Rate = 0.1
    """Dropout rate of embeddings and of sublayer outputs."""
    attention_dropout: Rate = 0.1
    """Dropout rate of attention probabilities."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights, before truncation if they are truncated."""
    initialisation: Literal["normal", "truncated_normal"] = "normal"
    """Distribution of the initial weights. normal: as in transformers; truncated_normal: as in TensorFlow, truncated at two
    standard deviations."""
    layer_norm_epsilon: float = Field(default=1e-12, gt=0)
    """Constant added to the variance in layer normalisation: 1e-12 in BERT, 1e-5 in RoBERTa, 1e-3 in Graphcore's BERT for
    TensorFlow 1."""
    query_key_value_bias: bool = True
    """The projections before attention have biases; those of Graphcore's BERT have none."""
    attention_projection_bias: bool = True
    """The projection after attention has a bias."""
    transform_layer: bool = True
    """The head has a projection, activation and normalisation before the vocabulary; Graphcore's recipes leave it out."""
    prediction_bias: bool = True
    """The head has a bias for each token of the vocabulary."""
    unlearnt_input: Literal["padding", "token_0", "none"] = "padding"
    """Token whose embedding gets no gradient from the input side. padding: as in transformers; token_0: as in
    pytorch_transformers 1.2.0, also for RoBERTa, where it is <s>; none: as in TensorFlow."""


class T5Architecture(Sizes):
    """A T5 or mT5: encoder and decoder, relative positions, pre-layer normalisation, no biases."""

    architecture: Literal["t5", "mt5"]
    """Name of the architecture: the same model under two names."""
    decoder_layers: int | None = Field(default=None, gt=0)
    """Number of decoder blocks; null: the same as in the encoder."""
    head_size: int = Field(default=64, gt=0)
    """Width of an attention head; heads times head_size may differ from hidden_size."""
    intermediate_size: int = Field(gt=0)
    """Width between the projections of the feed-forward sublayer."""
    relative_attention_buckets: int = Field(default=32, ge=4)
    """Number of buckets of relative positions; the encoder uses half of them for each direction."""
    relative_attention_distance: int = Field(default=128, gt=1)
    """Distance from which on all relative positions share one bucket."""
    dropout: Rate = 0.1
    """Dropout rate, wherever the original has dropout."""
    tied_head: bool = False
    """The projection to the vocabulary shares the weights of the embedding: true in T5 1.0, false in T5 1.1 and mT5."""
    feed_forward: Literal["gated_gelu", "relu"] = "gated_gelu"
    """Kind of feed-forward sublayer. gated_gelu: T5 1.1 and mT5; relu: T5 1.0."""
    initializer_factor: float = Field(default=1.0, gt=0)
    """Factor of all initial weights."""
    layer_norm_epsilon: float = Field(default=1e-6, gt=0)
    """Constant added to the mean square in layer normalisation."""


Architecture = Annotated[
    Gpt2Architecture | LlamaArchitecture | ModdedGptArchitecture | BertArchitecture | T5Architecture,
    SectionOf("architecture", lambda: {architecture.name: architecture.section for architecture in ARCHITECTURES}),
]

_GPT2 = ArchitectureDeclaration(
    name="gpt2",
    section=Gpt2Architecture,
    auto_class="AutoModelForCausalLM",
    pipeline="text-generation",
    model="relm.models.gpt2:Gpt2",
    configuration="relm.models.gpt2_configuration:gpt2_configuration",
    tensors="relm.models.decoder_counting:decoder_tensors",
    activations="relm.models.decoder_counting:decoder_activations",
    has_segments=True,
    terms=("next_token",),
)
_LLAMA = replace(
    _GPT2,
    name="llama",
    section=LlamaArchitecture,
    model="relm.models.llama:Llama",
    configuration="relm.models.llama_configuration:llama_configuration",
    twin_sizes={"key_value_heads": 1, "intermediate_size": None},
)
_MODDED_GPT = replace(
    _GPT2,
    name="modded_gpt",
    section=ModdedGptArchitecture,
    auto_class=None,
    model="relm.models.modded_gpt:ModdedGpt",
    configuration="relm.models.modded_gpt_configuration:modded_gpt_configuration",
)
_BERT = ArchitectureDeclaration(
    name="bert",
    section=BertArchitecture,
    auto_class="AutoModelForMaskedLM",
    pipeline="fill-mask",
    model="relm.models.bert:Bert",
    configuration="relm.models.bert_configuration:bert_configuration",
    tensors="relm.models.bert_counting:bert_tensors",
    activations="relm.models.bert_counting:bert_activations",
    has_segments=True,
    heads={
        "spans": "relm.models.bert_span:BertForSpans",
        "classes": "relm.models.bert_classification:BertForClassification",
    },
    terms=("masked_token", "next_sentence", "answer", "class", "score"),
    twin_sizes={"intermediate_size": None},
)
_T5 = ArchitectureDeclaration(
    name="t5",
    section=T5Architecture,
    auto_class="AutoModelForSeq2SeqLM",
    pipeline="text2text-generation",
    model="relm.models.t5:T5",
    configuration="relm.models.t5_configuration:t5_configuration",
    tensors="relm.models.t5_counting:t5_tensors",
    activations="relm.models.t5_counting:t5_activations",
    terms=("target_token",),
    twin_sizes={"decoder_layers": None, "head_size": TWIN_WIDTH // TWIN_HEADS, "intermediate_size": 2 * TWIN_WIDTH},
)
for _declaration in (_GPT2, _LLAMA, _MODDED_GPT, _BERT, replace(_BERT, name="roberta"), _T5, replace(_T5, name="mt5")):
    ARCHITECTURES.register(_declaration)


def register_architecture(declaration: ArchitectureDeclaration) -> None:
    """Add an architecture to those that recipes may name."""
    ARCHITECTURES.register(declaration)
    rebuild_sections()


def names_with(section: type[Sizes]) -> tuple[str, ...]:
    """Return the names of the architectures whose section in recipes is the given one."""
    return tuple(architecture.name for architecture in ARCHITECTURES if architecture.section is section)
