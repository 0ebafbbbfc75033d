"""A decoder in plain torch; its switches make it a GPT-2 (`relm.models.gpt2`), a Llama or a modded-nanogpt.

Blocks of causal self-attention and feed-forward, with normalisation before each sublayer (Radford et al. 2019). Modules have
the names of Hugging Face's ``GPT2LMHeadModel`` whatever the switches; an architecture maps them to its own names in files.
Imports nothing of this package except `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.attention import attention
from relm.models.contract import LanguageModel
from relm.models.decoder_configuration import DecoderConfig
from relm.models.layers import (
    GELU,
    Linear,
    RmsNorm,
    TracedModule,
    embedding,
    half_rotary_angles,
    layer_norm,
    root_mean_square_normalised,
    rotary_angles,
    rotated,
    through_layers,
)
from relm.models.losses import Term
from relm.models.segments import ModelSegment, State, state_of


class Projection(nn.Module):
    """An affine map whose weight is stored (in, out), as GPT-2's original TensorFlow code did."""

    bias: nn.Parameter | None
    widths: tuple[int, ...]
    """The widths of the maps that are side by side in it, which Muon takes one by one."""

    def __init__(self, inputs: int, outputs: int, bias: bool, widths: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.widths = widths or (outputs,)
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return F.linear(x, self.weight.t(), self.bias)


class Attention(TracedModule):
    """Causal self-attention over several heads, groups of which may share keys and values."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.key_value_heads = config.heads, config.key_value_heads
        self.head_size = config.hidden_size // config.heads
        self.dropout, self.scale = config.dropout, config.attention_scale
        self.query_key_epsilon = config.norm_epsilon if config.query_key_norm else None
        self.c_attn = Projection(config.hidden_size, sum(self.widths), config.biases, self.widths)
        self.c_proj = Projection(config.hidden_size, config.hidden_size, config.biases)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Return the widths of queries, keys and values, which are side by side in `c_attn`."""
        shared = self.key_value_heads * self.head_size
        return self.heads * self.head_size, shared, shared

    def forward(self, x: Tensor, mask: Any, rotation: Tensor | None = None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape; `mask` from `Decoder._mask`; `rotation` as in `Block`"""
        query, key, value = self.parts(x)
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        key, value = self.repeated(key), self.repeated(value)
        dropout = self.dropout if self.training else 0.0
        mixed = attention(query, key, value, mask, dropout, self.scale, causal=mask is None, traced=self.traced)
        return F.dropout(self.joined(mixed), self.dropout, self.training)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, sequence, hidden) -> queries, keys and values, each (batch, their heads, sequence, head_size), not rotated"""
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, -1, self.head_size).transpose(1, 2) for part in self.c_attn(x).split(self.widths, dim=2)
        )
        if self.query_key_epsilon is not None:
            query, key = (root_mean_square_normalised(each, self.query_key_epsilon) for each in (query, key))
        return query, key, value

    def repeated(self, shared: Tensor) -> Tensor:
        """Repeat keys or values for each head of their group, (batch, key_value_heads, ...) -> (batch, heads, ...)"""
        times = self.heads // self.key_value_heads
        return shared if times == 1 else shared.repeat_interleave(times, dim=1)

    def joined(self, mixed: Tensor) -> Tensor:
        """Concatenate and project the heads, (batch, heads, sequence, head_size) -> (batch, sequence, hidden)"""
        output: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """Two projections with an activation between them, or with the product of a third one after SiLU and the first."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.approximate = GELU.get(config.feed_forward)
        self.dropout = config.dropout
        self.c_gate = Projection(width, inner, config.biases) if config.feed_forward == "swiglu" else None
        self.c_fc = Projection(width, inner, config.biases)
        self.c_proj = Projection(inner, width, config.biases)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        if self.c_gate is not None:
            active = F.silu(self.c_gate(x)) * self.c_fc(x)
        elif self.approximate is not None:
            active = F.gelu(self.c_fc(x), approximate=self.approximate)
        else:
            active = F.relu(self.c_fc(x)).square()
        return F.dropout(self.c_proj(active), self.dropout, self.training)


def normalisation(config: DecoderConfig) -> nn.Module:
    """Return a normalisation of the residual stream."""
    if config.normalisation == "rms_norm":
        return RmsNorm(config.hidden_size, config.norm_epsilon)
    return layer_norm(config.hidden_size, config.norm_epsilon, config.biases)


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.ln_1 = normalisation(config)
        self.attn = Attention(config)
        self.ln_2 = normalisation(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, mask: Any, rotation: Tensor | None = None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape; `rotation` from `Transformer.rotation`"""
        x = x + self.attn(self.ln_1(x), mask, rotation)
        fed: Tensor = self.mlp(self.ln_2(x))
        return x + fed


class Transformer(nn.Module):
    """Embeddings, layers and the last normalisation."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.dropout, self.head_size = config.dropout, config.hidden_size // config.heads
        learnt = config.position_encoding == "learnt"
        self.rotary_base = None if learnt else config.rotary_base
        self.angles = half_rotary_angles if config.position_encoding == "half_rotary" else rotary_angles
        self.wte = embedding(config.vocabulary_size, config.hidden_size)
        self.wpe = embedding(config.positions, config.hidden_size) if learnt else None
        self.ln_e = normalisation(config) if config.embedding_norm else None
        self.h = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.ln_f = normalisation(config)

    def forward(self, input_ids: Tensor, mask: Any, recompute: Callable[..., Tensor] | None) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden)"""
        x = self.with_positions(self.wte(input_ids))
        normalised: Tensor = self.ln_f(through_layers(self.h, x, mask, self.rotation(x), recompute=recompute))
        return normalised

    def with_positions(self, x: Tensor) -> Tensor:
        """Add the embeddings of positions, if they are learnt, (batch, sequence, hidden) -> the same shape"""
        if self.wpe is not None:
            x = x + self.wpe.weight[: x.shape[1]]
        return F.dropout(self.normalised(x), self.dropout, self.training)

    def normalised(self, x: Tensor) -> Tensor:
        """Normalise the embeddings, if the architecture does, (batch, sequence, hidden) -> the same shape"""
        return x if self.ln_e is None else self.ln_e(x)

    def rotation(self, x: Tensor) -> Tensor | None:
        """Return the angles of the positions of `x`, (batch, sequence, hidden), as `rotated` takes them; None: learnt ones."""
        if self.rotary_base is None:
            return None
        return self.angles(torch.arange(x.shape[1], device=x.device), self.head_size, self.rotary_base)


def document_mask(document_ids: Tensor) -> Tensor:
    """Return the attention mask with which a token attends to itself and to those before it in the same document.

    Args:
        document_ids: (batch, sequence), equal for tokens of one document.

    Returns:
        (batch, 1, sequence, sequence) bool.
    """
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same.tril()


class Decoder(LanguageModel):
    """A causal language model, from token ids to logits of each next token."""

    def __init__(self, config: DecoderConfig) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__()
        self.config, self.logit_softcap = config, config.logit_softcap
        self.transformer = Transformer(config)
        if not config.tied_head:
            self.lm_head = Linear(config.hidden_size, config.vocabulary_size, bias=config.head_bias)

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss of a batch: "next_token".

        Args:
            batch: `input_ids` and `labels`, (batch, sequence) int64, the label -100 where nothing is scored; `document_ids`
                to keep attention within documents.
        """
        return self._scored(self.hidden(batch["input_ids"], batch.get("document_ids")), batch)

    def segments(self) -> list[ModelSegment]:
        """Return token_embedding, position_embedding, layers.N, the last one with the last normalisation, and head."""
        names = self.parameter_names
        layers = [
            ModelSegment(f"layers.{n}", names(f"transformer.h.{n}.", *self._after_layer(n)), partial(self._through_layer, n))
            for n in range(self.config.layers)
        ]
        return [
            ModelSegment("token_embedding", names("transformer.wte."), self._embed_tokens),
            ModelSegment("position_embedding", names("transformer.wpe.", "transformer.ln_e."), self._add_positions),
            *layers,
            ModelSegment(
                "head",
                names("transformer.wte." if self.config.tied_head else "lm_head."),
                lambda batch, state: state_of(self._scored(state["hidden"], batch)),
            ),
        ]

    def _after_layer(self, number: int) -> tuple[str, ...]:
        """Return the prefix of the last normalisation's parameters for the last layer."""
        return ("transformer.ln_f.",) if number == self.config.layers - 1 else ()

    def _embed_tokens(self, batch: Mapping[str, Tensor], state: State) -> State:
        self._require_positions(batch["input_ids"])
        return {"hidden": self.transformer.wte(batch["input_ids"])}

    def _add_positions(self, batch: Mapping[str, Tensor], state: State) -> State:
        return {"hidden": self.transformer.with_positions(state["hidden"])}

    def _through_layer(self, number: int, batch: Mapping[str, Tensor], state: State) -> State:
        mask, rotation = self._mask(batch.get("document_ids")), self.transformer.rotation(state["hidden"])
        layer = self.transformer.h[number]
        hidden = through_layers([layer], state["hidden"], mask, rotation, recompute=self.recompute)
        return {"hidden": self.transformer.ln_f(hidden) if self._after_layer(number) else hidden}

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss at the head's input."""
        return {"next_token": self.score_tokens(hidden, batch["labels"])}

    def logits(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Return the logits of each next token.

        Args:
            input_ids: (batch, sequence) int64, sequence at most ``config.positions``.
            document_ids: (batch, sequence), equal for tokens of one document: attention stays within documents, while
                positions count from the start of the sequence. None: attention is causal over the whole sequence.

        Returns:
            (batch, sequence, vocabulary).

        Raises:
            ValueError: the sequences are too long.
        """
        return self.head(self.hidden(input_ids, document_ids))

    def hidden(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Return the head's input, (batch, sequence, hidden); arguments and errors as in `logits`."""
        self._require_positions(input_ids)
        hidden: Tensor = self.transformer(input_ids, self._mask(document_ids), self.recompute)
        return hidden

    def _mask(self, document_ids: Tensor | None) -> Tensor | None:
        """Return `document_mask`; None, which stands for causal attention, without documents."""
        return None if document_ids is None else document_mask(document_ids)

    def _require_positions(self, input_ids: Tensor) -> None:
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")

    def vocabulary_projection(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the input of the projection to the vocabulary, its weight and its bias, if it has one."""
        if self.config.tied_head:
            return hidden, self.transformer.wte.weight, None
        return hidden, self.lm_head.weight, self.lm_head.bias

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters.

        Matrices are normal with standard deviation ``initializer_range``, divided by sqrt(2 layers) for the architecture's
        ``scaled_projections`` (section 2.3 of GPT-2's paper); biases are 0, normalisation weights 1.
        """
        spread = self.config.initializer_range
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
                    continue
                scaled = name.endswith(self.config.scaled_projections)
                std = spread / math.sqrt(2 * self.config.layers) if scaled else spread
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
