"""Objectives: the predictions that a phase is trained on, and the sequences that are built from documents.

To add one, declare it and give the declaration to `register_objective`; `causal` at the end of this file shows how.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.as_published import BUILDERS, AsPublished, BuilderDeclaration
from relm.recipes.declaration import NameIn, Registry, refuse_keys_of_others, register_with_options
from relm.recipes.section import Section

# The layout of stored examples: a stream of tokens that windows are cut from as they are read, or a table of sequences.
TOKEN_STREAM, TABLE = "tokens", "table"


@dataclass(frozen=True)
class ObjectiveDeclaration:
    """The facts on an objective, and references to the code that builds and reads its examples.

    It can be trained with every architecture whose models return the terms that it labels.
    """

    name: str
    """Name in recipes, and of the key with its options."""
    layout: str
    """Layout of stored examples: `TOKEN_STREAM` or `TABLE`."""
    labels: Mapping[str, str]
    """Term of a model's loss -> array of a batch with the labels that it scores."""
    pregenerate: str | None
    """Function like `relm.examples.builders.pregenerate`, which writes a shard of examples from a file of documents; None: the
    evaluation of a task writes them from the task's own file."""
    read: str
    """Function like `relm.examples.builders.open_examples`, which opens a split of examples for random access."""
    generate: str
    """Function (`Objective`, `relm.examples.contract.Vocabulary`, keys of rows) -> a batch of random examples, for runs that
    measure speed and memory."""
    lengths: str
    """Function (phase) -> number of positions of one example, padding included: in its source (or in all of it), in the target
    of a decoder (0 without one), and those with logits over the vocabulary."""
    terms: Callable[["Objective"], Collection[str]] | None = None
    """Function that returns the terms with labels under a phase's options; None: all terms."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Term -> number of its classes, for terms whose classes are not the tokens."""
    options: type[Section] | None = None
    """Section of its keys, all with defaults; None: it has none."""
    stores_length: bool = False
    """Stored examples have the phase's sequence length; otherwise they are cut to it when they are read."""
    read_time_options: Callable[["Objective"], Collection[str]] = lambda objective: ()
    """Function that returns the options that are applied when examples are read, and so do not change stored examples."""
    depends_on_language: Callable[["Objective"], bool] = lambda objective: False
    """Function that returns True if the stored examples depend on the text's language."""
    is_of_task: bool = False
    """The evaluation that fine-tunes a model on a task makes its examples from the task's file; a recipe cannot name it."""
    option_lengths: Collection[str] = ()
    """Options that are lengths in tokens, which the smoke twin reduces like `sequence_length`."""


OBJECTIVES = Registry[ObjectiveDeclaration]("objective")


def register_objective(declaration: ObjectiveDeclaration) -> None:
    """Add an objective to those that recipes may name; its options get a key of its name."""
    register_with_options(OBJECTIVES, declaration, Objective, f"Keys of {declaration.name}.")


class Causal(Section):
    """Next-token prediction on windows of one stream of all documents (GPT-2)."""

    end_of_text: Literal["after", "between", "never"] = "after"
    """Position of the end-of-text token. after: after every document; between: between documents, so not after the last; never:
    the tokenizer has no such token, and documents are concatenated without one."""
    stride: int | None = Field(default=None, gt=0)
    """Tokens from the start of one window to that of the next; null: sequence_length, so that each token is predicted once."""
    sampling: Literal["each_once", "with_replacement"] = "each_once"
    """Sampling of windows. each_once: an epoch reads every window once, in an order that depends on the recipe's seed;
    with_replacement: each window is drawn independently from all of them, as nanoGPT draws them with stride: 1."""
    document_attention: bool = False
    """Batches have the document of each token, so that attention can be restricted to the same document."""

    @model_validator(mode="after")
    def documents_have_a_separator(self) -> Self:
        if self.document_attention and self.end_of_text == "never":
            raise ValueError(
                "document_attention: needs a token between documents, found end_of_text: never; remove one of them"
            )
        return self


class Masked(Section):
    """Prediction of masked tokens (BERT, RoBERTa)."""

    packing: Literal["full_sentences", "document_sentences", "sentence_pairs"] = "full_sentences"
    """Packing of sentences into sequences. full_sentences: as many whole sentences as fit, across documents, with a separator
    between documents; document_sentences: the same within one document; sentence_pairs: two segments, the second the
    continuation of the first or from another document, with a label for next-sentence prediction. The names are those of
    RoBERTa's section 4.2."""
    sentences: Literal["split", "lines"] = "split"
    """Sentence boundaries. split: a rule-based splitter finds the sentences of each line; lines: each line is one sentence."""
    short_sequence_probability: float = Field(default=0.0, ge=0, le=1)
    """Share of sequences that are cut to a random length; 0.1 in BERT."""
    duplication_factor: int = Field(default=1, gt=0)
    """Number of times that all documents are packed, each time with other pairs, short sequences and static masks."""
    seed: int = Field(default=0, ge=0)
    """Random seed of packing and static masks. Dynamic masks depend on the recipe's own seed."""
    masks: Literal["dynamic", "static"] = "dynamic"
    """Time of masking. dynamic: masks are drawn whenever an example is read, from (seed, epoch, index); static: masks are drawn
    once and stored."""
    probability: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that are masked and predicted."""
    max_predictions: int | None = Field(default=None, gt=0)
    """Largest number of masked tokens in a sequence; null: only the probability limits it."""
    selection: Literal["exact", "bernoulli"] = "exact"
    """Selection of masked tokens. exact: probability times length of them, rounded, at least one; bernoulli: each token
    independently."""
    whole_words: bool = False
    """All tokens of a word are masked together."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the masked tokens that are replaced by the mask token."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the masked tokens that are replaced by a random token; the rest is unchanged."""

    @model_validator(mode="after")
    def shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share ({self.mask_share}) and random_share ({self.random_share}) exceed 1 together")
        return self

    @model_validator(mode="after")
    def predictions_are_bounded(self) -> Self:
        if self.selection == "bernoulli" and self.whole_words and self.max_predictions is None:
            raise ValueError("selection: bernoulli with whole_words needs max_predictions as a limit of masked tokens")
        return self


class Seq2Seq(Section):
    """Prediction of a text from the same text without diacritics (mT5)."""

    texts: Literal["lines", "documents"] = "lines"
    """Unit of text for one pair: a line that is not blank, or a document."""
    target_length: int | None = Field(default=None, gt=1)
    """Length of the target in tokens, its end included; null: sequence_length, which is the length of the source."""


class Objective(Section):
    """Keys of a phase that determine its objective and sequences; `Phase` adds those of its training."""

    LONGEST: ClassVar[int] = 65_535

    objective: Annotated[str, NameIn(OBJECTIVES)]
    """Training objective. causal: predict each next token; masked: predict masked tokens; seq2seq: predict a target text from a
    source text; spans: mark an answer; two_classes, three_classes: predict the class of a text or a pair of texts; score:
    predict its score. The last four are for fine-tuning on a task, not for recipes."""
    sequence_length: int = Field(gt=1, le=65_535)  # a position is 16 bits in stored examples
    """Length of a sequence in tokens; for seq2seq, that of the encoder."""
    causal: Causal = Causal()
    """Options of the objective causal."""
    masked: Masked = Masked()
    """Options of the objective masked."""
    seq2seq: Seq2Seq = Seq2Seq()
    """Options of the objective seq2seq."""
    as_published: AsPublished | None = None
    """Reproduction of an original script's examples, its defects included; null: examples without such defects."""

    @model_validator(mode="after")
    def options_belong_to_the_objective(self) -> Self:
        refuse_keys_of_others(self, "objective", {one.name: [one.name] for one in OBJECTIVES})
        if self.as_published is not None and self.causal.sampling != "each_once":
            raise ValueError(f"causal.sampling: {self.as_published.builder} always reads each window once; remove it")
        if (builder := self.original) is not None and builder.objective != self.objective:
            raise ValueError(
                f"as_published.builder: {builder.name} builds objective {builder.objective}, found {self.objective}"
            )
        return self

    @property
    def declaration(self) -> ObjectiveDeclaration:
        """Declaration of the objective."""
        return OBJECTIVES[self.objective]

    @property
    def terms(self) -> Collection[str]:
        """Terms of the loss for which examples have labels."""
        return self.declaration.labels.keys() if self.declaration.terms is None else self.declaration.terms(self)

    @property
    def classes(self) -> dict[str, int]:
        """Term for which examples have labels -> count of its classes; 0 where the classes are the tokens."""
        return {term: self.declaration.classes.get(term, 0) for term in self.terms}

    @property
    def original(self) -> BuilderDeclaration | None:
        """Declaration of the original whose examples are reproduced; None: no original's."""
        return None if self.as_published is None else BUILDERS[self.as_published.builder]

    @property
    def layout(self) -> str:
        """Layout of pregenerated examples: `TOKEN_STREAM` or `TABLE`."""
        return self.declaration.layout

    @property
    def suffix(self) -> str:
        """Suffix of a shard of pregenerated examples: .bin for a stream of tokens, .arrow for a table."""
        return {TOKEN_STREAM: ".bin", TABLE: ".arrow"}[self.layout]

    def stored_keys(self) -> dict[str, Any]:
        """Return the keys that determine the stored examples, not those applied in reading; none for a stream of tokens."""
        if self.layout == TOKEN_STREAM:
            return {}
        given = self.model_dump(mode="json", include={"objective", "as_published", self.objective}, exclude_defaults=True)
        read_time = self.declaration.read_time_options(self)
        options = given.pop(self.objective, {})
        if options := {key: value for key, value in options.items() if key not in read_time}:
            given[self.objective] = options
        return {**given, "sequence_length": self.sequence_length} if self.declaration.stores_length else given

    @property
    def depends_on_language(self) -> bool:
        """True if stored examples depend on the text's language, as for the ends of sentences or the standard letters."""
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
    return objective.masked.sentences == "split" and (objective.original is None or objective.original.splits_sentences)


for _declaration in (
    ObjectiveDeclaration(
        name="causal",
        layout=TOKEN_STREAM,
        labels={"next_token": "labels"},
        pregenerate="relm.examples.pregenerate:pregenerate_stream",
        read="relm.examples.causal:open_causal",
        generate="relm.examples.causal:generate_causal",
        lengths="relm.examples.causal:causal_lengths",
        options=Causal,
        read_time_options=lambda objective: ("sampling", "document_attention"),
    ),
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
        read_time_options=_drawn_with_masks,
        depends_on_language=_splits_sentences,
    ),
    ObjectiveDeclaration(
        name="seq2seq",
        layout=TABLE,
        labels={"target_token": "labels"},
        pregenerate="relm.examples.seq2seq:pregenerate_seq2seq",
        read="relm.examples.seq2seq:open_seq2seq",
        generate="relm.examples.seq2seq:generate_seq2seq",
        lengths="relm.examples.seq2seq:seq2seq_lengths",
        options=Seq2Seq,
        read_time_options=lambda objective: ("target_length",),
        depends_on_language=lambda objective: True,
        option_lengths=("target_length",),
    ),
    ObjectiveDeclaration(
        name="spans",
        layout=TABLE,
        labels={"answer": "answer_positions"},
        pregenerate=None,
        read="relm.examples.spans:open_spans",
        generate="relm.examples.spans:generate_spans",
        lengths="relm.examples.spans:span_lengths",
        stores_length=True,
        is_of_task=True,
    ),
    *(
        ObjectiveDeclaration(
            name=_name,
            layout=TABLE,
            labels={_term: _label},
            classes={_term: _classes},
            pregenerate=None,
            read="relm.examples.fine_tuning.classification:open_labelled",
            generate="relm.examples.fine_tuning.classification:generate_labelled",
            lengths="relm.examples.fine_tuning.classification:labelled_lengths",
            stores_length=True,
            is_of_task=True,
        )
        for _name, _term, _label, _classes in (
            ("two_classes", "class", "class_labels", 2),
            ("three_classes", "class", "class_labels", 3),
            ("score", "score", "scores", 1),
        )
    ),
):
    OBJECTIVES.register(_declaration)
