"""The encoder of BERT and RoBERTa: embeddings, layers and pooler, under the parameter names of Hugging Face's.

Learnt positions, and normalisation after each sublayer (Devlin et al. 2019). The last layer computes only the positions that
are read. Imports nothing of this package except `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.attention import attention
from relm.models.bert_configuration import BertConfig
from relm.models.gathering import gathered
from relm.models.layers import GELU, Linear, TracedModule, embedding, layer_norm, through_layers


class Embeddings(nn.Module):
    """Embeddings of token, position and segment, summed and normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.first_position = config.first_position
        self.unlearnt_id = config.unlearnt_id
        self.dropout = config.hidden_dropout
        self.word_embeddings = embedding(config.vocabulary_size, config.hidden_size)
        self.position_embeddings = embedding(config.first_position + config.positions, config.hidden_size)
        self.token_type_embeddings = embedding(config.type_vocabulary_size, config.hidden_size)
        self.LayerNorm = layer_norm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden)"""
        return self.with_positions(self.words(input_ids), token_type_ids)

    def words(self, input_ids: Tensor) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden), the tokens' embeddings"""
        return F.embedding(input_ids, self.word_embeddings.weight, self.unlearnt_id)

    def with_positions(self, words: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Add positions and segments and normalise, (batch, sequence, hidden) -> the same shape"""
        last = self.first_position + words.shape[1]
        positions = self.position_embeddings.weight[self.first_position : last]
        kinds = self.token_type_embeddings.weight
        if token_type_ids is None or len(kinds) == 1:
            x = words + (positions + kinds[0])
        else:
            x = words + F.embedding(token_type_ids, kinds) + positions
        return F.dropout(self.LayerNorm(x), self.dropout, self.training)


class SelfAttention(TracedModule):
    """Bidirectional attention over several heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.attention_dropout
        self.query = Linear(config.hidden_size, config.hidden_size, config.query_key_value_bias)
        self.key = Linear(config.hidden_size, config.hidden_size, config.query_key_value_bias)
        self.value = Linear(config.hidden_size, config.hidden_size, config.query_key_value_bias)

    def forward(self, rows: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Queries of `rows` (batch, rows, hidden), keys and values of `x` (batch, sequence, hidden) -> (batch, rows, hidden)"""
        query, key, value = self._heads(self.query(rows)), self._heads(self.key(x)), self._heads(self.value(x))
        dropout = self.dropout if self.training else 0.0
        mixed = attention(query, key, value, mask, dropout, traced=self.traced)
        return mixed.transpose(1, 2).reshape(rows.shape)

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        return x.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)


class AddedProjection(nn.Module):
    """A projection that is added to the residual stream, which is then normalised."""

    def __init__(self, inputs: int, config: BertConfig, bias: bool) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        self.dense = Linear(inputs, config.hidden_size, bias)
        self.LayerNorm = layer_norm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """(..., inputs) and (..., hidden) -> (..., hidden)"""
        normalised: Tensor = self.LayerNorm(F.dropout(self.dense(x), self.dropout, self.training) + residual)
        return normalised


class Activated(nn.Module):
    """A projection with a GELU after it."""

    def __init__(self, outputs: int, config: BertConfig) -> None:
        super().__init__()
        self.approximate = GELU[config.activation]
        self.dense = Linear(config.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., outputs)"""
        return F.gelu(self.dense(x), approximate=self.approximate)


class Attention(nn.Module):
    """The first sublayer: self-attention, added to the residual stream."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = AddedProjection(config.hidden_size, config, config.attention_projection_bias)

    def forward(self, rows: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, rows, hidden) attending to (batch, sequence, hidden) -> (batch, rows, hidden)"""
        normalised: Tensor = self.output(self.self(rows, x, mask), rows)
        return normalised


class Layer(TracedModule):
    """One layer: attention and feed-forward, the residual stream normalised after each."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Activated(config.intermediate_size, config)
        self.output = AddedProjection(config.intermediate_size, config, bias=True)

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape, or (batch, positions, hidden): the output at `positions` only"""
        x = self.attention(gathered(x, positions, self.traced), x, mask)
        normalised: Tensor = self.output(self.intermediate(x), x)
        return normalised


class Layers(nn.Module):
    """The stack of layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(config) for _ in range(config.layers)])

    def forward(
        self, x: Tensor, mask: Tensor | None, positions: Tensor | None, recompute: Callable[..., Tensor] | None
    ) -> Tensor:
        """(batch, sequence, hidden) -> the same shape, or (batch, positions, hidden)

        The last layer computes queries and feed-forward at `positions` only, since nothing else of its output is read.
        """
        x = through_layers(list(self.layer)[:-1], x, mask, recompute=recompute)
        return through_layers([self.layer[-1]], x, mask, positions, recompute=recompute)


class Pooler(nn.Module):
    """The representation of a whole sequence, from its first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """The first token, (batch, hidden) -> the same shape"""
        return torch.tanh(self.dense(x))


class Encoder(nn.Module):
    """Embeddings and layers; with sentence pairs or a classifier, a pooler that reads the first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Layers(config)
        self.pooler = Pooler(config) if config.has_pooler else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        positions: Tensor | None,
        recompute: Callable[..., Tensor] | None,
    ) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden), or (batch, positions, hidden) at `positions`"""
        mask = padding_mask(attention_mask)
        encoded: Tensor = self.encoder(self.embeddings(input_ids, token_type_ids), mask, positions, recompute)
        return encoded


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """(batch, sequence), 1 a token, 0 padding -> (batch, 1, 1, sequence) bool; None: all are tokens"""
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]
