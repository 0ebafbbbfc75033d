"""BERT and RoBERTa in plain torch, under the parameter names of Hugging Face's ``BertForPreTraining``.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"; Liu et al. 2019,
"RoBERTa: A Robustly Optimized BERT Pretraining Approach": an encoder with learnt positions, normalisation after each
sublayer, and a head tied to the token embedding. The last layer and the head compute only what is scored: masked positions,
and the first token for sentence pairs. RoBERTa is the same module: its positions start at another row, and its files have
other names. Imports nothing of this package except `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.bert_configuration import BertConfig
from relm.models.bert_encoder import Activated
from relm.models.bert_model import EncoderModel
from relm.models.layers import Linear, layer_norm
from relm.models.losses import Term, cross_entropy

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


class Bert(EncoderModel):
    """A masked language model, with or without a head for sentence pairs.

    Its terms are "masked_token" and, with that head, "next_sentence". Its batches have `masked_positions` and `masked_labels`,
    (batch, positions) int64, the label -100 where a position is unused: the objective decides the count of positions, and
    rejects a sequence with more masked tokens. `next_sentence_labels`, (batch,) int64, are 0 for a pair that belongs together.
    """

    copies = _COPIES
    head_parameters = ("bert.embeddings.word_embeddings.", "bert.pooler.", "cls.")

    def __init__(self, config: BertConfig) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__(config)
        self.cls = Heads(config)

    def _read_positions(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the positions at which the encoder's output is read: masked ones and, for pairs, the first before them."""
        positions = batch["masked_positions"]
        return F.pad(positions, (1, 0)) if self.config.next_sentence else positions

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        masked = hidden[:, -batch["masked_positions"].shape[1] :]
        terms = {"masked_token": self.score_tokens(masked, batch["masked_labels"])}
        if self.config.next_sentence:
            related = self._related(hidden[:, 0])
            terms["next_sentence"] = cross_entropy(related, batch["next_sentence_labels"], self.traced)
        return terms

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        masked_positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (batch, sequence, vocabulary), or (batch, positions, vocabulary) at `masked_positions`."""
        return self.head(self.encoded(input_ids, attention_mask, token_type_ids, masked_positions))

    def vocabulary_projection(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the transformed input of the projection to the vocabulary, its weight and its bias."""
        predictions = self.cls.predictions
        return predictions(hidden), self.bert.embeddings.word_embeddings.weight, predictions.bias

    def _related(self, first: Tensor) -> Tensor:
        """The first token's output, (batch, hidden) -> (batch, 2), the logits of "belongs together" and "random"."""
        assert self.bert.pooler is not None, "next_sentence is on"
        assert self.cls.seq_relationship is not None, "next_sentence is on"
        related: Tensor = self.cls.seq_relationship(self.bert.pooler(first))
        return related

    def _absent_biases(self) -> dict[str, Tensor]:
        absent = super()._absent_biases()
        if self.config.transform_layer and not self.config.prediction_bias:
            absent["cls.predictions.bias"] = torch.zeros(self.config.vocabulary_size)
        return absent
