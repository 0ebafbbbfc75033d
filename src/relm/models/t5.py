"""T5 and mT5 in plain torch, under the parameter names of Hugging Face's ``T5ForConditionalGeneration``.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (arXiv 1910.10683);
Xue et al. 2021, "mT5: A massively multilingual pre-trained text-to-text transformer" (arXiv 2010.11934): an encoder and a
decoder with relative positions in attention only, without biases in projections, normalised by the root mean square before each
sublayer. T5 1.1 and mT5 have a gated feed-forward sublayer and an untied head; T5 1.0 has neither. Running it needs torch 2.1,
whose attention has an argument for the scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.attention import MASKED
from relm.models.configuration import folder_config
from relm.models.contract import LanguageModel
from relm.models.layers import Linear, embedding, through_layers
from relm.models.losses import IGNORED_LABEL, Term
from relm.models.t5_attention import Attention, relative_buckets
from relm.models.t5_configuration import T5Config
from relm.models.weights import WEIGHTS, read_weights, write_folder

_SHARED, _HEAD = "shared.weight", "lm_head.weight"
# The embedding has these names too; a file holds one of the three names, or all.
_STACK_EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Early files hold this table, which no model ever used.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


class RootMeanSquareNorm(nn.Module):
    """Division by the root mean square (Zhang and Sennrich 2019), the mean taken in float32."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.epsilon = config.layer_norm_epsilon
        self.weight = nn.Parameter(torch.empty(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape"""
        mean_square = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.epsilon)).to(self.weight.dtype)


class SelfAttention(nn.Module):
    """The sublayer in which a sequence attends to itself."""

    def __init__(self, config: T5Config, positions: bool) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.SelfAttention = Attention(config, positions)
        self.layer_norm = RootMeanSquareNorm(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        normalised = self.layer_norm(x)
        return x + F.dropout(self.SelfAttention(normalised, normalised, bias), self.dropout, self.training)


class CrossAttention(nn.Module):
    """The sublayer in which the decoder attends to the encoder's output."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.EncDecAttention = Attention(config, positions=False)
        self.layer_norm = RootMeanSquareNorm(config)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        """(batch, target, hidden) and (batch, source, hidden) -> (batch, target, hidden)"""
        mixed = self.EncDecAttention(self.layer_norm(x), source, bias)
        return x + F.dropout(mixed, self.dropout, self.training)


class Dense(nn.Module):
    """Two projections around a ReLU, or around the product of one through a GELU and another one (Shazeer 2020)."""

    wi: Linear
    wi_0: Linear
    wi_1: Linear

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.dropout, self.gated = config.dropout, config.feed_forward == "gated_gelu"
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            setattr(self, name, Linear(config.hidden_size, config.intermediate_size, bias=False))
        self.wo = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape"""
        active = F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x) if self.gated else F.relu(self.wi(x))
        output: Tensor = self.wo(F.dropout(active, self.dropout, self.training))
        return output


class FeedForward(nn.Module):
    """The last sublayer: feed-forward, gated or with a ReLU."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.DenseReluDense = Dense(config)
        self.layer_norm = RootMeanSquareNorm(config)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        return x + F.dropout(self.DenseReluDense(self.layer_norm(x)), self.dropout, self.training)


class Block(nn.Module):
    """One layer: self-attention, in the decoder cross-attention, and feed-forward."""

    def __init__(self, config: T5Config, positions: bool, decoder: bool) -> None:
        super().__init__()
        cross = [CrossAttention(config)] if decoder else []
        self.layer = nn.ModuleList([SelfAttention(config, positions), *cross, FeedForward(config)])

    def forward(self, x: Tensor, bias: Tensor, source: Tensor | None, source_bias: Tensor | None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape; `source` is None in the encoder"""
        x = self.layer[0](x, bias)
        if source is not None:
            x = self.layer[1](x, source, source_bias)
        output: Tensor = self.layer[-1](x)
        return output


class Stack(nn.Module):
    """Encoder or decoder: layers, the first with the table of position biases, and the last normalisation."""

    def __init__(self, config: T5Config, layers: int, decoder: bool) -> None:
        super().__init__()
        self.config = config
        self.decoder = decoder
        self.block = nn.ModuleList([Block(config, index == 0, decoder) for index in range(layers)])
        self.final_layer_norm = RootMeanSquareNorm(config)

    def forward(
        self,
        x: Tensor,
        visible: Tensor | None,
        source: Tensor | None,
        source_bias: Tensor | None,
        recompute: Callable[..., Tensor] | None,
    ) -> Tensor:
        """(batch, sequence, hidden) embeddings -> the same shape

        `visible` is bool, in a shape that broadcasts to (batch, 1, sequence, sequence); None: everything. `source`, (batch,
        source, hidden), is None in the encoder, and `source_bias` biases the logits of attention to it.
        """
        bias = self._position_bias(x.shape[1])
        if visible is not None:
            bias = torch.where(visible, bias, MASKED)
        x = F.dropout(x, self.config.dropout, self.training)
        x = through_layers(self.block, x, bias, source, source_bias, recompute=recompute)
        return F.dropout(self.final_layer_norm(x), self.config.dropout, self.training)

    def _position_bias(self, length: int) -> Tensor:
        """Return the bias of the logits of every layer by distance, (1, heads, sequence, sequence)."""
        first: Any = self.block[0]
        table = first.layer[0].SelfAttention.relative_attention_bias.weight
        config = self.config
        buckets = relative_buckets(
            length, length, config.relative_attention_buckets, config.relative_attention_distance,
            both_ways=not self.decoder, device=table.device,
        )  # fmt: skip
        return F.embedding(buckets, table).permute(2, 0, 1)[None]


class T5(LanguageModel):
    """An encoder-decoder, from a source to logits of each token of its target."""

    lm_head: Linear | None

    def __init__(self, config: T5Config) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__()
        self.config = config
        self.shared = embedding(config.vocabulary_size, config.hidden_size)
        self.encoder = Stack(config, config.layers, decoder=False)
        self.decoder = Stack(config, config.decoder_layers or config.layers, decoder=True)
        self.lm_head = None if config.tied_head else Linear(config.hidden_size, config.vocabulary_size, bias=False)

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss of a batch: "target_token".

        The batch has `input_ids`, (batch, source) int64, optionally `attention_mask`, the same shape, false for padding, and
        `labels`, (batch, target) int64, -100 where nothing is scored.
        """
        labels = batch["labels"]
        hidden = self._hidden(batch["input_ids"], self.decoder_inputs(labels), batch.get("attention_mask"))
        return {"target_token": self.score_tokens(hidden, labels)}

    def decoder_inputs(self, labels: Tensor) -> Tensor:
        """Return the decoder's inputs: the labels shifted by one after a start token, padding where nothing is scored."""
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        before = labels[:, :-1]
        return torch.cat([start, before.masked_fill(before == IGNORED_LABEL, self.config.pad_token_id)], dim=1)

    def logits(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the logits of each next token of the target, (batch, target, vocabulary).

        `input_ids` are (batch, source) int64, `decoder_input_ids` (batch, target) int64 from `decoder_inputs`. The mask, of
        the shape of the source, is false for padding; None: all are tokens.
        """
        return self.head(self._hidden(input_ids, decoder_input_ids, attention_mask))

    def _hidden(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the decoder's output, (batch, target, hidden); arguments as in `logits`."""
        # Looked up together, so that the embedding's gradient is one sum; a TPU's compiler would merge two over all cores.
        both = self.shared(torch.cat([input_ids, decoder_input_ids], dim=1))
        source, target = both.split([input_ids.shape[1], decoder_input_ids.shape[1]], dim=1)
        visible = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        encoded: Tensor = self.encoder(source, visible, None, None, self.recompute)
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=encoded.device).tril()
        # The bias that masks the source's padding, (batch, 1, 1, source).
        bias = None if attention_mask is None else attention_mask.bool().logical_not()[:, None, None, :] * MASKED
        decoded: Tensor = self.decoder(target, causal, encoded, bias, self.recompute)
        return decoded

    def vocabulary_projection(self, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the decoder's output, scaled where the architecture does, the head's weight and no bias."""
        if self.config.scaled_head:
            hidden = hidden * self.config.hidden_size**-0.5
        return hidden, self.shared.weight if self.lm_head is None else self.lm_head.weight, None

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters: normal, with T5's deviation for each kind.

        As in `transformers`. Mesh TensorFlow, which trained T5 and mT5, differs in three kinds. It truncates the normal
        distribution of feed-forward projections at two sigma, and draws position biases uniformly within
        sqrt(6 / (buckets + heads)). It gives an untied head the deviation hidden_size ** -0.5, truncated; the 1 used here makes
        the first losses large.
        """
        factor = self.config.initializer_factor
        spreads = self._spreads()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(factor)
                    continue
                std = factor * spreads[name.split(".")[-2]]
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))

    def _spreads(self) -> dict[str, float]:
        """Return name of a matrix -> standard deviation of its initial weights, before the factor."""
        config = self.config
        from_stream = config.hidden_size**-0.5
        return {
            "shared": 1.0,
            "lm_head": 1.0,
            # The deviation of queries replaces the scale of attention's logits.
            "q": (config.hidden_size * config.head_size) ** -0.5,
            **dict.fromkeys(("k", "v", "wi", "wi_0", "wi_1", "relative_attention_bias"), from_stream),
            "o": (config.heads * config.head_size) ** -0.5,
            "wo": config.intermediate_size**-0.5,
        }

    @classmethod
    def from_folder(cls, folder: Path, expected: T5Config | None = None) -> T5:
        """Load the model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        Nothing in it is executed or unpickled. `expected` is the architecture that the weights must fit, and the dropout to
        train them with. Raise ValueError if the architecture is another one, or parameters are missing, unknown, or of another
        shape.
        """
        config = _config_of_folder(folder, expected)
        model = cls(config)
        copies = (*_STACK_EMBEDDINGS, _HEAD) if config.tied_head else _STACK_EMBEDDINGS
        own_name = _own_names(folder).__getitem__
        weights = read_weights(folder, model.state_dict(), own_name, dict.fromkeys(copies, _SHARED), {})
        model.load_state_dict(weights)
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write a folder with `generation_config.json`, whose ids of padding and start come from the model."""
        own = self.config.token_ids()
        write_folder(folder, self.config.to_huggingface(), {**tokens, **own}, self.state_dict(), generates=True)


def _own_names(folder: Path) -> dict[str, str | None]:
    """Return name in a file -> the module's name; None for a tensor that the module ignores."""
    from safetensors import safe_open

    with safe_open(str(folder / WEIGHTS), framework="pt") as weights:
        published = list(weights.keys())
    names = {name: None if name == _UNUSED else name for name in published}
    aliases = [name for name in _STACK_EMBEDDINGS if name in names]
    if _SHARED not in names and aliases:
        names[aliases[0]] = _SHARED
    return names


def _config_of_folder(folder: Path, expected: T5Config | None) -> T5Config:
    """Return `folder_config`; an mT5's weights decide whether its head is tied, since `transformers` 5 writes that all are."""
    if folder_config(folder, T5Config).family != "mt5":
        return folder_config(folder, T5Config, expected)
    config = folder_config(folder, T5Config, expected, ("tied_head",))
    return config if expected is not None else dataclasses.replace(config, tied_head=not _has_own_head(folder))


def _has_own_head(folder: Path) -> bool:
    """Return True if a file holds a head that is not a copy of the embedding."""
    from safetensors import safe_open

    published = {own: name for name, own in _own_names(folder).items()}
    if _HEAD not in published or _SHARED not in published:
        return _HEAD in published
    with safe_open(str(folder / WEIGHTS), framework="pt") as weights:
        return not torch.equal(*(weights.get_tensor(published[name]) for name in (_HEAD, _SHARED)))
