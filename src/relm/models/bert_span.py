"""BERT and RoBERTa with a head that marks the first and last token of an answer, as transformers' `BertForQuestionAnswering`.

Devlin et al. 2019, section 4.2: the logits of both are products with the encoder's output at every position, padding included.
There transformers computes other logits for RoBERTa, whose padding has its own position, and so a slightly different loss.
Imports nothing of this package except `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from relm.models.bert_configuration import BertConfig
from relm.models.bert_model import EncoderModel
from relm.models.layers import Linear
from relm.models.losses import Term, cross_entropy


class BertForSpans(EncoderModel):
    """An encoder with a head for answers that are spans of the text.

    Its term is "answer", of `answer_positions`, (batch, 2) int64: the first and last token of each answer, both 0 where the
    text has none. Their mean is that of BERT's `run_squad.py`: half the sum of the mean losses of first and last tokens.
    """

    head_parameters = ("qa_outputs.",)

    def __init__(self, config: BertConfig) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__(replace(config, head="spans", next_sentence=False))
        self.qa_outputs = Linear(config.hidden_size, 2)

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        return {"answer": cross_entropy(self.head(hidden), batch["answer_positions"], self.traced)}

    def head(self, hidden: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> (batch, 2, sequence), the logits of each position as the first and as the last token"""
        logits: Tensor = self.qa_outputs(hidden)
        return logits.transpose(1, 2)

    def logits(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the logits (batch, 2, sequence) of the first and of the last token of the answer; arguments as in `terms`."""
        return self.head(self.encoded(input_ids, attention_mask, token_type_ids))
