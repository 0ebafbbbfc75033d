"""BERT and RoBERTa in plain torch, under the parameter names of Hugging Face's ``BertForPreTraining``.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"; Liu et al. 2019,
"RoBERTa: A Robustly Optimized BERT Pretraining Approach": an encoder with learnt positions, normalisation after each
sublayer, and a head tied to the token embedding. The last layer and the head compute only what is scored: masked positions,
and the first token for sentence pairs. RoBERTa is the same module: its positions start at another row, and its files have
other names. Imports nothing of this package beside `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.bert_configuration import FREE_FIELDS, BertConfig
from relm.models.bert_encoder import Activated, Encoder, padding_mask
from relm.models.configuration import folder_config
from relm.models.contract import LanguageModel
from relm.models.layers import Linear, layer_norm, through_layers, truncated_normal
from relm.models.losses import Term, cross_entropy
from relm.models.segments import ModelSegment, State, state_of
from relm.models.weights import read_weights, write_folder

_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


class Transform(Activated):
    """The projection, activation and normalisation before the vocabulary."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config.hidden_size, config)
        self.LayerNorm = layer_norm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape"""
        normalised: Tensor = self.LayerNorm(super().forward(x))
        return normalised


class Predictions(nn.Module):
    """The head for masked tokens, before the projection to the vocabulary; its bias is that projection's."""

    bias: nn.Parameter | None

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(config.vocabulary_size)) if config.prediction_bias else None
        self.transform = Transform(config) if config.transform_layer else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape"""
        return x if self.transform is None else self.transform(x)


class Heads(nn.Module):
    """The heads on the encoder's output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = Predictions(config)
        self.seq_relationship = Linear(config.hidden_size, 2) if config.next_sentence else None


class Bert(LanguageModel):
    """A masked language model, with or without a head for sentence pairs."""

    def __init__(self, config: BertConfig) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__()
        self.config = config
        self.bert = Encoder(config)
        self.cls = Heads(config)

    @property
    def tokenizer_outputs(self) -> list[str]:
        """Return the tokenizer's outputs that the model takes; RoBERTa takes no segments, nor a BERT with one kind."""
        has_segments = self.config.family == "bert" and self.config.type_vocabulary_size > 1
        return ["input_ids", "token_type_ids", "attention_mask"] if has_segments else super().tokenizer_outputs

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss of a batch: "masked_token" and, if the model has that head, "next_sentence".

        Args:
            batch: `input_ids`, `attention_mask` (1 a token, 0 padding), `token_type_ids`, all (batch, sequence) int64, the
                latter two optional; `masked_positions` and `masked_labels`, (batch, positions) int64, the label -100 where
                a position is unused. The objective decides the count of positions, and rejects a sequence with more masked
                tokens. `next_sentence_labels`, (batch,) int64, 0 for a pair that belongs together, 1 for one that does not.

        Raises:
            ValueError: the sequences are too long.
        """
        positions = self._read_positions(batch)
        hidden = self.encoded(batch["input_ids"], batch.get("attention_mask"), batch.get("token_type_ids"), positions)
        return self._scored(hidden, batch)

    def _read_positions(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the positions at which the encoder's output is read: masked ones and, for pairs, the first before them."""
        positions = batch["masked_positions"]
        return F.pad(positions, (1, 0)) if self.config.next_sentence else positions

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss at the encoder's output at the positions that are read."""
        masked = hidden[:, -batch["masked_positions"].shape[1] :]
        terms = {"masked_token": self.score_tokens(masked, batch["masked_labels"])}
        if self.config.next_sentence:
            related = self._related(hidden[:, 0])
            terms["next_sentence"] = cross_entropy(related, batch["next_sentence_labels"], self.traced)
        return terms

    def segments(self) -> list[ModelSegment]:
        """Return token_embedding, position_embedding, layers.N and head, with the pooler and the head for sentence pairs.

        The last layer computes only the positions that are read, so the head's input has those alone.
        """
        names, embeddings = self.parameter_names, "bert.embeddings."
        others = (embeddings + "position_embeddings.", embeddings + "token_type_embeddings.", embeddings + "LayerNorm.")
        layers = [
            ModelSegment(f"layers.{n}", names(f"bert.encoder.layer.{n}."), partial(self._through_layer, n))
            for n in range(self.config.layers)
        ]
        return [
            ModelSegment("token_embedding", names(embeddings + "word_embeddings."), self._embed_tokens),
            ModelSegment("position_embedding", names(*others), self._add_positions),
            *layers,
            ModelSegment(
                "head",
                names(embeddings + "word_embeddings.", "bert.pooler.", "cls."),
                lambda batch, state: state_of(self._scored(state["hidden"], batch)),
            ),
        ]

    def _embed_tokens(self, batch: Mapping[str, Tensor], state: State) -> State:
        self._require_positions(batch["input_ids"])
        return {"hidden": self.bert.embeddings.words(batch["input_ids"])}

    def _add_positions(self, batch: Mapping[str, Tensor], state: State) -> State:
        return {"hidden": self.bert.embeddings.with_positions(state["hidden"], batch.get("token_type_ids"))}

    def _through_layer(self, number: int, batch: Mapping[str, Tensor], state: State) -> State:
        is_last = number == self.config.layers - 1
        others = [padding_mask(batch.get("attention_mask")), *([self._read_positions(batch)] if is_last else [])]
        layer = self.bert.encoder.layer[number]
        return {"hidden": through_layers([layer], state["hidden"], *others, recompute=self.recompute)}

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        masked_positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the token at each position; arguments as in `terms`.

        Returns:
            (batch, sequence, vocabulary), or (batch, positions, vocabulary) at `masked_positions`.
        """
        return self.head(self.encoded(input_ids, attention_mask, token_type_ids, masked_positions))

    def next_sentence_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the logits (batch, 2) of "belongs together" and "random"; the model must have that head."""
        return self._related(self.encoded(input_ids, attention_mask, token_type_ids)[:, 0])

    def encoded(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the encoder's output (batch, sequence, hidden), or (batch, positions, hidden) at `positions`.

        Arguments as in `terms`.

        Raises:
            ValueError: the sequences are too long.
        """
        self._require_positions(input_ids)
        hidden: Tensor = self.bert(input_ids, attention_mask, token_type_ids, positions, self.recompute)
        return hidden

    def _require_positions(self, input_ids: Tensor) -> None:
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")

    def vocabulary_projection(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the transformed input of the projection to the vocabulary, its weight and its bias."""
        predictions = self.cls.predictions
        return predictions(hidden), self.bert.embeddings.word_embeddings.weight, predictions.bias

    def _related(self, first: Tensor) -> Tensor:
        assert self.bert.pooler is not None, "next_sentence is on"
        assert self.cls.seq_relationship is not None, "next_sentence is on"
        related: Tensor = self.cls.seq_relationship(self.bert.pooler(first))
        return related

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters.

        Every matrix has the standard deviation `initializer_range` and the distribution `initialisation`; biases are 0,
        normalisation weights 1. With "normal", as in `transformers`, the embedding of padding is 0, and so is the position
        that RoBERTa keeps for it.
        """
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
                else:
                    parameter.copy_(self._drawn(parameter.shape, generator))
            if self.config.initialisation == "normal" and self.config.padding_id is not None:
                self.bert.embeddings.word_embeddings.weight[self.config.padding_id] = 0.0
                if self.config.family == "roberta":
                    self.bert.embeddings.position_embeddings.weight[self.config.padding_id] = 0.0

    def _drawn(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        std = self.config.initializer_range
        if self.config.initialisation == "truncated_normal":
            return truncated_normal(shape, std, generator)
        return torch.empty(shape).normal_(0.0, std, generator=generator)

    @classmethod
    def from_folder(cls, folder: Path, expected: BertConfig | None = None) -> Bert:
        """Load the model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        A pooler and a head for sentence pairs in the file are ignored if the model has none; if it has them, the file must.

        Args:
            folder: nothing in it is executed or unpickled.
            expected: the architecture that the weights must fit, and the dropout to train them with; None: the folder's.

        Raises:
            ValueError: the architecture is another one, or parameters are missing, unknown, or of another shape.
            OSError: a file is absent.
        """
        config = folder_config(folder, BertConfig, expected, FREE_FIELDS)
        model = cls(config)
        weights = read_weights(folder, model.state_dict(), config.own_name, _COPIES, model._absent_biases())
        model.load_state_dict(weights)
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json` and `model.safetensors` (float32) into an existing folder.

        Args:
            tokens: ids of special tokens for `config.json`, such as `bos_token_id`.
        """
        weights = {**self.state_dict(), **self._absent_biases()}
        published = {self.config.published_name(name): tensor for name, tensor in weights.items()}
        write_folder(folder, self.config.to_huggingface(), tokens, published, generates=False)

    def _absent_biases(self) -> dict[str, Tensor]:
        """Return zeros for the biases that `transformers` has and this model lacks."""
        absent = {
            f"{name}.bias": torch.zeros(module.weight.shape[0])
            for name, module in self.named_modules()
            if isinstance(module, Linear) and module.bias is None
        }
        if self.config.transform_layer and not self.config.prediction_bias:
            absent["cls.predictions.bias"] = torch.zeros(self.config.vocabulary_size)
        return absent
