"""Objectives: what a phase predicts, and how documents become the sequences it is trained on.

To add one, declare it and give the declaration to `register_objective`; `causal` at the end of this file shows how.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn, Registry, add_options
from relm.recipes.section import Section

# The layout of stored examples: a stream of tokens that windows are cut from as they are read, or a table of sequences.
TOKEN_STREAM, TABLE = "tokens", "table"


def _no_keys(objective: "Objective") -> Collection[str]:
    return ()


def _no_language(objective: "Objective") -> bool:
    return False


@dataclass(frozen=True)
class ObjectiveDeclaration:
    """The facts on an objective, and references to the code that makes and reads its examples.

    It can be trained with every architecture whose models return the terms that it labels.
    """

    name: str
    """As recipes have it, and of the key with its options."""
    layout: str
    """`TOKEN_STREAM` or `TABLE`: how examples are stored."""
    labels: Mapping[str, str]
    """Term of a model's loss -> the array of a batch with the labels that it scores."""
    pregenerate: str
    """A function as `relm.examples.builders.pregenerate`: makes a shard of examples of a file of documents."""
    read: str
    """A function as `relm.examples.builders.open_examples`: opens a split of examples to be read in any order."""
    generate: str
    """A function (`Objective`, `relm.examples.contract.Vocabulary`, keys of rows) -> a batch of random examples, for runs that
    measure speed and memory."""
    lengths: str
    """A function from a phase to the positions of one example, padding included: those of its source (or of all of it), of the
    target in a decoder (0 where there is none), and those that the vocabulary's logits are computed for."""
    terms: Callable[["Objective"], Collection[str]] | None = None
    """Returns the terms that a phase's options give labels for; None: all of them."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Term -> classes that it tells apart, where these are not the tokens."""
    options: type[Section] | None = None
    """Its own keys, all with defaults; None: it has none."""
    stores_length: bool = False
    """Whether stored examples have the phase's sequence length; else they are cut to it as they are read."""
    drawn_later: Callable[["Objective"], Collection[str]] = _no_keys
    """Returns the options that are applied as examples are read, and so change nothing that is stored."""
    depends_on_language: Callable[["Objective"], bool] = _no_language
    """Returns True if the text's language decides what is stored."""
    option_lengths: Collection[str] = ()
    """Options that are lengths in tokens, which the smoke twin cuts as it does `sequence_length`."""


@dataclass(frozen=True)
class BuilderDeclaration:
    """An original's script whose examples can be built bit for bit."""

    name: str
    """As `as_published.builder` has it."""
    objective: str
    """The objective of its examples."""
    options: Collection[str] = ()
    """Keys of `as_published` that it has, beside `builder`."""
    pregenerate: str | None = None
    """As of `ObjectiveDeclaration`; None: the objective's own."""
    read: str | None = None
    """As of `ObjectiveDeclaration`; None: the objective's own."""


OBJECTIVES = Registry[ObjectiveDeclaration]("objective")
BUILDERS = Registry[BuilderDeclaration]("builder")


def register_objective(declaration: ObjectiveDeclaration) -> None:
    """Make an objective known to recipes, with a key for its options."""
    OBJECTIVES.register(declaration)
    if declaration.options is not None:
        add_options(Objective, declaration.name, declaration.options, f"Keys of {declaration.name} alone.")


class Causal(Section):
    """Predict each next token of windows cut from one stream of all documents (GPT-2)."""

    end_of_text: Literal["after", "between", "never"] = "after"
    """The end-of-text token follows every document, or stands between them only: none after the last; never: the tokenizer has
    no such token, and each document runs into the next."""
    stride: int | None = Field(default=None, gt=0)
    """Tokens from the beginning of one window to that of the next; null: sequence_length, so that each is predicted once."""
    sampling: Literal["each_once", "with_replacement"] = "each_once"
    """each_once: an epoch reads every window once, in an order that follows from the recipe's seed; with_replacement: each
    window is drawn from all of them, whatever was drawn before; so nanoGPT draws them, of stride: 1."""
    document_attention: bool = False
    """Each batch says which document a token belongs to, so that attention may stay within documents."""

    @model_validator(mode="after")
    def documents_can_be_told_apart(self) -> Self:
        if self.document_attention and self.end_of_text == "never":
            raise ValueError("document_attention tells documents apart by the end-of-text token; not with end_of_text: never")
        return self


class Masked(Section):
    """Predict hidden tokens (BERT, RoBERTa)."""

    packing: Literal["full_sentences", "document_sentences", "sentence_pairs"] = "full_sentences"
    """full_sentences: as many whole sentences as fit, across documents, a separator between these; document_sentences: the same
    within one document; sentence_pairs: two segments, the second the continuation of the first or from another document, and a
    label that says which. The names are those of RoBERTa's section 4.2."""
    sentences: Literal["split", "lines"] = "split"
    """split: a rule-based splitter finds the sentences of each line; lines: each line is one."""
    short_sequence_probability: float = Field(default=0.0, ge=0, le=1)
    """Share of sequences that are cut to a random length, as BERT's are with 0.1."""
    duplication_factor: int = Field(default=1, gt=0)
    """How often all documents are packed, with other pairs, short sequences and static masks each time."""
    seed: int = Field(default=0, ge=0)
    """Of packing and static masks. Dynamic masks follow the recipe's own seed."""
    masks: Literal["dynamic", "static"] = "dynamic"
    """dynamic: drawn anew whenever an example is read, from (seed, epoch, index); static: drawn once, and stored."""
    probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that are predicted."""
    max_predictions: int | None = Field(default=None, gt=0)
    """At most so many tokens of a sequence; null: as many as the probability gives."""
    selection: Literal["exact", "bernoulli"] = "exact"
    """exact: the nearest whole number to probability times length, at least one; bernoulli: each token for itself."""
    whole_words: bool = False
    """All tokens of a word are hidden together, or none."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Of the hidden tokens, replaced by the mask token."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Of the hidden tokens, replaced by a random one; the rest stays as it is."""

    @model_validator(mode="after")
    def shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share ({self.mask_share}) and random_share ({self.random_share}) exceed 1 together")
        return self

    @model_validator(mode="after")
    def predictions_are_bounded(self) -> Self:
        if self.selection == "bernoulli" and self.whole_words and self.max_predictions is None:
            raise ValueError("selection: bernoulli with whole_words needs max_predictions: nothing else bounds what is hidden")
        return self


class Seq2Seq(Section):
    """Predict a target text from a source text that a rule makes of it (mT5)."""

    source: Literal["without_diacritics"] = "without_diacritics"
    """without_diacritics: the source is the text with all diacritics removed."""
    texts: Literal["lines", "documents"] = "lines"
    """What one pair is made of: a line that is not blank, or a document."""
    target_length: int | None = Field(default=None, gt=1)
    """Tokens of the target, its end included; null: sequence_length, which is the source's."""


class SpanCorruption(Section):
    """Predict hidden spans of a text from the rest (T5, section 3.1.4)."""

    noise_density: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that are hidden."""
    mean_span_length: float = Field(default=3.0, ge=1)
    """Tokens of a hidden span, on average."""


class AsPublished(Section):
    """Build the examples bit for bit as an original's script did, its defects included."""

    builder: Annotated[str, NameIn(BUILDERS)]
    """tpu_pretrain: allenai/tpu_pretrain, pregenerate_training_data.py; graphcore_bert: Graphcore's BERT for TensorFlow 1,
    create_pretraining_data.py; graphcore_gpt2: Graphcore's GPT-2, the index maps of its GPTDataset; run_mlm: run_mlm.py of
    transformers 4.2.2."""
    seed: int = Field(default=0, ge=0)
    """Of Python's or numpy's generator, which the original draws from."""
    epochs: int = Field(default=1, gt=0)
    """graphcore_gpt2: epochs that are shuffled as one."""
    remask: bool = False
    """graphcore_bert: masked tokens come first, with explicit positions (its --remask)."""

    @model_validator(mode="after")
    def options_belong_to_the_builder(self) -> Self:
        for key, known in type(self).model_fields.items():
            owners = [builder.name for builder in BUILDERS if key in builder.options]
            if owners and self.builder not in owners and getattr(self, key) != known.default:
                raise ValueError(f"{key}: {self.builder} has no such option, but {' and '.join(owners)}; leave it out")
        return self


class Objective(Section):
    """The keys of a phase that say what is predicted and from which sequences; `Phase` adds how it is trained."""

    LONGEST: ClassVar[int] = 65_535

    objective: Annotated[str, NameIn(OBJECTIVES)]
    """causal: predict each next token; masked: hidden tokens; seq2seq: a text from another; span_corruption: hidden spans."""
    sequence_length: int = Field(gt=1, le=65_535)  # a position is 16 bits in stored examples
    """Tokens the model sees at once; of seq2seq and span_corruption, those of the encoder."""
    causal: Causal = Causal()
    """How documents become windows, where that is the objective."""
    masked: Masked = Masked()
    """How sequences are packed and masked, where that is the objective."""
    seq2seq: Seq2Seq = Seq2Seq()
    """Which pairs of texts are made, where that is the objective."""
    span_corruption: SpanCorruption = SpanCorruption()
    """How spans are hidden, where that is the objective."""
    as_published: AsPublished | None = None
    """Build the examples as an original's script did; null: the right way."""

    @model_validator(mode="after")
    def options_belong_to_the_objective(self) -> Self:
        others = [other.name for other in OBJECTIVES if other.options is not None and other.name != self.objective]
        if strange := [name for name in others if getattr(self, name) != type(self).model_fields[name].default]:
            raise ValueError(f"{strange[0]}: options of another objective than {self.objective}; leave them out")
        if self.as_published is not None and self.causal.sampling != "each_once":
            raise ValueError(f"causal.sampling: {self.as_published.builder} has no such option; leave it out")
        if (builder := self.original) is not None and builder.objective != self.objective:
            raise ValueError(
                f"as_published.builder: {builder.name} builds objective {builder.objective}, found {self.objective}"
            )
        return self

    @property
    def declaration(self) -> ObjectiveDeclaration:
        """The facts on the objective."""
        return OBJECTIVES[self.objective]

    @property
    def terms(self) -> Collection[str]:
        """The terms of the loss that examples have labels for."""
        return self.declaration.labels.keys() if self.declaration.terms is None else self.declaration.terms(self)

    @property
    def original(self) -> BuilderDeclaration | None:
        """The facts on the original whose examples are built; None: none's."""
        return None if self.as_published is None else BUILDERS[self.as_published.builder]

    @property
    def layout(self) -> str:
        """`TOKEN_STREAM` or `TABLE`: how pregenerated examples are stored."""
        return self.declaration.layout

    @property
    def suffix(self) -> str:
        """The suffix of a shard of pregenerated examples: .bin for a stream of tokens, .arrow for a table."""
        return {TOKEN_STREAM: ".bin", TABLE: ".arrow"}[self.layout]

    def what_is_stored(self) -> dict[str, Any]:
        """Return the keys that decide the stored examples; what is drawn or cut as they are read is left out.

        Empty for a stream of tokens, which is the same for every objective that reads one.
        """
        if self.layout == TOKEN_STREAM:
            return {}
        given = self.model_dump(mode="json", include={"objective", "as_published", self.objective}, exclude_defaults=True)
        drawn_later = self.declaration.drawn_later(self)
        options = given.pop(self.objective, {})
        if options := {key: value for key, value in options.items() if key not in drawn_later}:
            given[self.objective] = options
        return {**given, "sequence_length": self.sequence_length} if self.declaration.stores_length else given

    @property
    def depends_on_language(self) -> bool:
        """Whether the text's language decides what is stored: where sentences end, which letters are the standard ones."""
        return self.declaration.depends_on_language(self)


DRAWN_WITH_DYNAMIC_MASKS = (
    "probability", "max_predictions", "selection", "whole_words", "mask_share", "random_share",
)  # fmt: skip


def _masked_terms(objective: Objective) -> Collection[str]:
    return ("masked_token", "next_sentence") if objective.masked.packing == "sentence_pairs" else ("masked_token",)


def _drawn_with_masks(objective: Objective) -> Collection[str]:
    stored = objective.masked.masks == "static" or objective.as_published is not None
    return () if stored else DRAWN_WITH_DYNAMIC_MASKS


def _splits_sentences(objective: Objective) -> bool:
    reads_rows = objective.as_published is not None and objective.as_published.builder == "run_mlm"
    return objective.masked.sentences == "split" and not reads_rows


OBJECTIVES.register(
    ObjectiveDeclaration(
        name="causal",
        layout=TOKEN_STREAM,
        labels={"next_token": "labels"},
        pregenerate="relm.examples.pregenerate:pregenerate_stream",
        read="relm.examples.causal:open_causal",
        generate="relm.examples.causal:generate_causal",
        lengths="relm.examples.causal:causal_lengths",
        options=Causal,
    )
)
OBJECTIVES.register(
    ObjectiveDeclaration(
        name="masked",
        layout=TABLE,
        labels={"masked_token": "masked_labels", "next_sentence": "next_sentence_labels"},
        terms=_masked_terms,
        classes={"next_sentence": 2},
        pregenerate="relm.examples.masked:pregenerate_masked",
        read="relm.examples.masked:open_masked",
        generate="relm.examples.masked:generate_masked",
        lengths="relm.examples.masking:masked_lengths",
        options=Masked,
        stores_length=True,
        drawn_later=_drawn_with_masks,
        depends_on_language=_splits_sentences,
    )
)
OBJECTIVES.register(
    ObjectiveDeclaration(
        name="seq2seq",
        layout=TABLE,
        labels={"target_token": "labels"},
        pregenerate="relm.examples.seq2seq:pregenerate_seq2seq",
        read="relm.examples.seq2seq:open_seq2seq",
        generate="relm.examples.seq2seq:generate_seq2seq",
        lengths="relm.examples.seq2seq:seq2seq_lengths",
        options=Seq2Seq,
        drawn_later=lambda objective: ("target_length",),
        depends_on_language=lambda objective: True,
        option_lengths=("target_length",),
    )
)
OBJECTIVES.register(
    ObjectiveDeclaration(
        name="span_corruption",
        layout=TOKEN_STREAM,
        labels={"target_token": "labels"},
        pregenerate="relm.examples.pregenerate:pregenerate_stream",
        read="relm.examples.span_corruption:SpanCorruptionExamples",
        generate="relm.examples.span_corruption:generate_span_corruption",
        lengths="relm.examples.span_corruption:span_corruption_lengths",
        options=SpanCorruption,
    )
)
BUILDERS.register(
    BuilderDeclaration(
        name="tpu_pretrain",
        objective="masked",
        options=("seed",),
        pregenerate="relm.examples.as_published.tpu_pretrain:pregenerate_tpu_pretrain",
    )
)
BUILDERS.register(
    BuilderDeclaration(
        name="graphcore_bert",
        objective="masked",
        options=("seed", "remask"),
        pregenerate="relm.examples.as_published.graphcore_bert:pregenerate_graphcore_bert",
    )
)
BUILDERS.register(
    BuilderDeclaration(
        name="graphcore_gpt2",
        objective="causal",
        options=("seed", "epochs"),
        read="relm.examples.as_published.graphcore_gpt2:open_graphcore_gpt2",
    )
)
BUILDERS.register(
    BuilderDeclaration(
        name="run_mlm",
        objective="masked",
        pregenerate="relm.examples.as_published.run_mlm:pregenerate_run_mlm",
    )
)
