"""The architecture of BERT and RoBERTa, read from and written to `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from relm.models.configuration import HUGGINGFACE_ACTIVATIONS, Published, own_switches, require_consistent

_OWN_FIELDS = (
    "initialisation", "query_key_value_bias", "attention_projection_bias", "transform_layer", "prediction_bias",
)  # fmt: skip
_WITH_SENTENCE_PAIRS = ("BertForPreTraining", "BertForNextSentencePrediction")
_HEAD_CLASSES = {
    "spans": {"bert": "BertForQuestionAnswering", "roberta": "RobertaForQuestionAnswering"},
    "classes": {"bert": "BertForSequenceClassification", "roberta": "RobertaForSequenceClassification"},
}
_HEADS = ("vocabulary", *_HEAD_CLASSES)
# Number of outputs of a classifier whose file does not state it.
_LABELS = 2
_INITIALISATIONS = ("normal", "truncated_normal")
_UNLEARNT_INPUTS = ("padding", "token_0", "none")
_DEFAULT_VOCABULARY = {"bert": 30522, "roberta": 50265}
_DEFAULT_PADDING = {"bert": 0, "roberta": 1}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The architecture: the keys of `config.json` under this project's names, and switches that have no key there."""

    # The weights show whether there is a head for pairs.
    free_fields = (
        "hidden_dropout", "attention_dropout", "initializer_range", "initialisation", "padding_id", "unlearnt_input",
        "next_sentence", "head",
    )  # fmt: skip

    layers: int
    heads: int
    hidden_size: int
    intermediate_size: int
    """Width between the two projections of the feed-forward sublayer."""
    positions: int
    """The longest sequence. RoBERTa's table has `padding_id + 1` more rows, which no token uses."""
    vocabulary_size: int
    type_vocabulary_size: int = 2
    """Kinds of segments; with one, `token_type_ids` are ignored."""
    family: str = "bert"
    """bert: positions start at row 0; roberta: at row `padding_id + 1`, and files have other names."""
    next_sentence: bool = False
    """A pooled first token and a head that predicts whether the second segment follows the first."""
    head: str = "vocabulary"
    """vocabulary: masked tokens, and sentence pairs with `next_sentence`; spans: the first and last token of an answer;
    classes: the class of a text or a pair of texts, or a score."""
    labels: int = _LABELS
    """Outputs of the head `classes`: the count of classes, or 1 for a score."""
    activation: str = "gelu_erf"
    """gelu_erf: the exact function, as published; gelu_tanh: the approximation, which Graphcore's devices always compute."""
    hidden_dropout: float = 0.1
    """Dropout on embeddings and on the outputs of sublayers."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights, before any truncation."""
    initialisation: str = "normal"
    """normal: transformers', with a padding row of zeros; truncated_normal: TensorFlow's, nothing beyond two sigma."""
    layer_norm_epsilon: float = 1e-12
    """1e-12 in BERT, 1e-5 in RoBERTa, 1e-3 in Graphcore's BERT for TensorFlow 1."""
    padding_id: int | None = 0
    """The token of padding, if any."""
    unlearnt_input: str = "padding"
    """The token whose embedding gets no gradient from the input side. padding: as in transformers; token_0: as in
    pytorch_transformers 1.2.0, even for RoBERTa, where it is <s>; none: as in TensorFlow."""
    query_key_value_bias: bool = True
    """Biases of queries, keys and values, which Google's BERT has and Graphcore's by default lacks.

    The keys' bias changes nothing, since softmax cancels it."""
    attention_projection_bias: bool = True
    """A bias in the projection that follows attention."""
    transform_layer: bool = True
    """A projection, activation and normalisation before the vocabulary; Graphcore's recipes leave it out."""
    prediction_bias: bool = True
    """A bias for each token's logit."""

    def __post_init__(self) -> None:
        require_consistent(self, self.heads, self.hidden_size, self.activation)
        if self.family not in _DEFAULT_PADDING:
            raise ValueError(f"family is {self.family!r}, expected {' or '.join(_DEFAULT_PADDING)}")
        if self.initialisation not in _INITIALISATIONS:
            raise ValueError(f"initialisation is {self.initialisation!r}, expected {' or '.join(_INITIALISATIONS)}")
        if self.unlearnt_input not in _UNLEARNT_INPUTS:
            raise ValueError(f"unlearnt_input is {self.unlearnt_input!r}, expected {' or '.join(_UNLEARNT_INPUTS)}")
        if self.head not in _HEADS:
            raise ValueError(f"head is {self.head!r}, expected {' or '.join(_HEADS)}")
        if self.padding_id is not None and not 0 <= self.padding_id < self.vocabulary_size:
            raise ValueError(f"padding_id is {self.padding_id}, expected one of the {self.vocabulary_size} tokens, or none")
        if self.family == "roberta":
            self._require_roberta()

    def _require_roberta(self) -> None:
        """Raise for an architecture that `RobertaForMaskedLM` cannot express."""
        required = {"next_sentence": False, "activation": "gelu_erf", "transform_layer": True}
        for name, value in required.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {value!r} for family roberta")
        if self.padding_id is None:
            raise ValueError("padding_id is None, expected a token's id for family roberta: positions count from it")

    @property
    def unlearnt_id(self) -> int | None:
        """Return the token whose embedding gets no gradient from the input side, if any."""
        return {"padding": self.padding_id, "token_0": 0, "none": None}[self.unlearnt_input]

    @property
    def has_pooler(self) -> bool:
        """Return True if the encoder has a projection of the first token's output, which in RoBERTa the classifier has."""
        return self.next_sentence or (self.head == "classes" and self.family == "bert")

    @property
    def first_position(self) -> int:
        """Return the row of the first token's position."""
        return self.padding_id + 1 if self.family == "roberta" and self.padding_id is not None else 0

    @property
    def architecture(self) -> str:
        """Return the architecture's name in `config.json`."""
        return self.family

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> BertConfig:
        """Read the architecture in a `config.json` of `BertForPreTraining` or another class of BERT's or RoBERTa's."""
        published = Published(config)
        family = published.required("model_type", "bert", tuple(_DEFAULT_PADDING))
        published.required("position_embedding_type", "absolute", ("absolute",))
        published.required("tie_word_embeddings", True, (True,))
        published.required("is_decoder", False, (False,))
        published.required("add_cross_attention", False, (False,))
        hidden_size = published.whole("hidden_size", 768)
        padding_id = config.get("pad_token_id", _DEFAULT_PADDING[family])
        named = config.get("architectures") or ()
        head = next((head for head, names in _HEAD_CLASSES.items() if names[family] in named), "vocabulary")
        first = 0 if family == "bert" or padding_id is None else padding_id + 1
        return cls(
            layers=published.whole("num_hidden_layers", 12),
            heads=published.heads("num_attention_heads", 12, "hidden_size", hidden_size),
            hidden_size=hidden_size,
            intermediate_size=published.whole("intermediate_size", 3072),
            positions=published.whole("max_position_embeddings", 512, least=first + 1) - first,
            vocabulary_size=published.whole("vocab_size", _DEFAULT_VOCABULARY[family]),
            type_vocabulary_size=published.whole("type_vocab_size", 2),
            family=family,
            next_sentence=any(name in _WITH_SENTENCE_PAIRS for name in named),
            head=head,
            labels=_published_labels(published) if head == "classes" else _LABELS,
            activation=published.activation("hidden_act", "gelu"),
            hidden_dropout=published.number("hidden_dropout_prob", 0.1),
            attention_dropout=published.number("attention_probs_dropout_prob", 0.1),
            initializer_range=published.number("initializer_range", 0.02),
            layer_norm_epsilon=published.number("layer_norm_eps", 1e-12),
            padding_id=padding_id,
            **published.own(_OWN_FIELDS),
        )

    def to_huggingface(self) -> dict[str, Any]:
        """Return the content of `config.json`, without the ids of special tokens other than padding.

        `transformers` has no class with the head but without the transform layer. The architecture is then the encoder, with or
        without the head for sentence pairs.
        """
        return {
            "architectures": [self._architecture()],
            "model_type": self.family,
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": HUGGINGFACE_ACTIVATIONS[self.activation],
            "hidden_dropout_prob": self.hidden_dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "max_position_embeddings": self.positions + self.first_position,
            "type_vocab_size": self.type_vocabulary_size,
            "initializer_range": self.initializer_range,
            "layer_norm_eps": self.layer_norm_epsilon,
            "pad_token_id": self.padding_id,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            **self._names_of_labels(),
            **own_switches(self, _OWN_FIELDS),
        }

    def _names_of_labels(self) -> dict[str, Any]:
        """Return the keys for the labels, with the names that `transformers` gives them."""
        if self.head != "classes":
            return {}
        names = [f"LABEL_{number}" for number in range(self.labels)]
        return {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
            "problem_type": "regression" if self.labels == 1 else "single_label_classification",
        }

    def _architecture(self) -> str:
        if self.head in _HEAD_CLASSES:
            return _HEAD_CLASSES[self.head][self.family]
        if self.family == "roberta":
            return "RobertaForMaskedLM"
        if self.transform_layer:
            return "BertForPreTraining" if self.next_sentence else "BertForMaskedLM"
        return "BertForNextSentencePrediction" if self.next_sentence else "BertModel"

    def own_name(self, published: str) -> str | None:
        """Return the module's name for a name in a file; None for a tensor that this model ignores."""
        name = published
        for own, theirs in self.renamed():
            if name.startswith(theirs):
                name = own + name[len(theirs) :]
        # The first release used TensorFlow's names, gamma and beta.
        for ending, own in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(ending):
                name = name[: -len(ending)] + own
        ignored: tuple[str, ...] = () if self.has_pooler else ("bert.pooler.",)
        ignored += () if self.next_sentence else ("cls.seq_relationship.",)
        ignored += ("cls.",) if self.head in _HEAD_CLASSES else ()
        return None if name.startswith(ignored) or name == "bert.embeddings.position_ids" else name

    def published_name(self, own: str) -> str:
        """Return the name in a file for a name of the module, the inverse of `own_name`."""
        for beginning, theirs in self.renamed():
            if own.startswith(beginning):
                return theirs + own[len(beginning) :]
        return own

    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Return prefixes of the module's names, which are BERT's, with those of `transformers`."""
        if self.family == "bert":
            return ()
        return (
            ("bert.", "roberta."),
            ("cls.predictions.transform.dense.", "lm_head.dense."),
            ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
            ("cls.predictions.", "lm_head."),
        )


def _published_labels(published: Published) -> int:
    """Return the count of outputs of a classifier."""
    names = published.config.get("id2label")
    if names is not None and not (isinstance(names, dict) and names):
        raise ValueError(f"config.json: id2label is {names!r}, expected an object with a name for each label")
    labels = published.whole("num_labels", _LABELS) if names is None else len(names)
    kind = "regression" if labels == 1 else "single_label_classification"
    published.required("problem_type", None, (None, kind))
    return labels


def bert_configuration(settings: Mapping[str, Any], special: Mapping[str, int | None], terms: Mapping[str, int]) -> BertConfig:
    """Return the configuration of a BERT or RoBERTa, with the head that the terms of the loss need.

    `relm.recipes.architectures.ArchitectureDeclaration` describes the arguments.
    """
    sizes = {key: value for key, value in settings.items() if key != "architecture"}
    sizes["intermediate_size"] = sizes["intermediate_size"] or 4 * sizes["hidden_size"]
    return BertConfig(
        **sizes,
        family=settings["architecture"],
        next_sentence="next_sentence" in terms,
        head="spans" if "answer" in terms else "classes" if terms.keys() & {"class", "score"} else "vocabulary",
        labels=terms.get("class", 1 if "score" in terms else _LABELS),
        padding_id=special.get("pad"),
    )
