"""BERT and RoBERTa with a head for the class of a text or a pair of texts, or for a score, as transformers' classifiers.

Devlin et al. 2019, section 4.1: BERT's head reads the pooled first token through dropout. RoBERTa's has a projection of its own
in place of the pooler, with dropout before it as well (`RobertaClassificationHead` of transformers, and fairseq's). A score has
the squared error as its loss, as there. The last layer computes the first token only, since nothing else of its output is read.
Imports nothing of this package except `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.bert_configuration import BertConfig
from relm.models.bert_model import EncoderModel
from relm.models.layers import Linear
from relm.models.losses import Term, cross_entropy, squared_error


class RobertaClassifier(nn.Module):
    """RoBERTa's head, under transformers' names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.out_proj = Linear(config.hidden_size, config.labels)

    def forward(self, first: Tensor) -> Tensor:
        """The first token's output, (batch, hidden) -> (batch, labels)"""
        hidden = torch.tanh(self.dense(F.dropout(first, self.dropout, self.training)))
        logits: Tensor = self.out_proj(F.dropout(hidden, self.dropout, self.training))
        return logits


class BertForClassification(EncoderModel):
    """An encoder with a head for `labels` classes, or for a score if that is 1.

    Its term is "class", of `class_labels`, (batch,) int64; or "score", of `scores`, (batch,) float32, whose nats are squared
    errors.
    """

    head_parameters = ("bert.pooler.", "classifier.")

    def __init__(self, config: BertConfig) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__(replace(config, head="classes", next_sentence=False))
        is_bert = config.family == "bert"
        self.classifier = Linear(config.hidden_size, config.labels) if is_bert else RobertaClassifier(config)

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        logits = self.head(hidden)
        if self.config.labels == 1:
            return {"score": squared_error(logits[:, 0], batch["scores"])}
        return {"class": cross_entropy(logits, batch["class_labels"], self.traced)}

    def head(self, hidden: Tensor) -> Tensor:
        """(batch, positions, hidden), the first token's output first -> (batch, labels), the logits or the score"""
        first = hidden[:, 0]
        if self.bert.pooler is not None:
            first = F.dropout(self.bert.pooler(first), self.config.hidden_dropout, self.training)
        logits: Tensor = self.classifier(first)
        return logits

    def logits(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the logits of the classes, or the score, (batch, labels); arguments as in `terms`."""
        positions = self._read_positions({"input_ids": input_ids})
        return self.head(self.encoded(input_ids, attention_mask, token_type_ids, positions))

    def _read_positions(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the first position of each sequence, (batch, 1)."""
        return torch.zeros_like(batch["input_ids"][:, :1])
