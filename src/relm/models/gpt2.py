"""GPT-2 in plain torch, under the parameter names and layouts of Hugging Face's ``GPT2LMHeadModel``.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": a decoder with learnt positions,
normalisation before each sublayer, and a head tied to the token embedding. Imports nothing of this package beside
`relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.attention import attention
from relm.models.configuration import (
    HUGGINGFACE_ACTIVATIONS,
    Published,
    folder_config,
    own_switches,
    require_consistent,
)
from relm.models.contract import LanguageModel
from relm.models.layers import GELU, embedding, layer_norm, through_layers
from relm.models.losses import Term, cross_entropy
from relm.models.weights import read_weights, write_folder

# What a published file may hold beside the parameters: buffers with the causal mask.
_MASK_BUFFERS = (".attn.bias", ".attn.masked_bias")
_COPIES = {"lm_head.weight": "transformer.wte.weight"}
# Two models that differ in these alone have interchangeable weights.
_FREE_FIELDS = ("dropout", "initializer_range")
_OWN_FIELDS = ("biases",)


@dataclasses.dataclass(frozen=True)
class Gpt2Config:
    """The architecture: what `config.json` says, in this project's words.

    Raises:
        ValueError: the heads do not divide the width, or the activation is unknown.
    """

    layers: int
    heads: int
    hidden_size: int
    positions: int
    """The longest sequence."""
    vocabulary_size: int
    activation: str = "gelu_tanh"
    """gelu_tanh: the approximation of the original; gelu_erf: the exact one."""
    dropout: float = 0.1
    """On embeddings, attention and residuals alike."""
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    biases: bool = True
    """Of projections and normalisations. `transformers` has no GPT-2 without; there they are zeros, and learn if trained on."""

    def __post_init__(self) -> None:
        require_consistent(self, self.heads, self.hidden_size, self.activation)

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Gpt2Config:
        """The architecture in a `config.json` of `GPT2LMHeadModel`.

        Raises:
            ValueError: it describes a model that this class cannot be; names the key.
        """
        published = Published(config)
        hidden_size = published.whole("n_embd", 768)
        dropout = published.number("resid_pdrop", 0.1)
        published.required("model_type", "gpt2", ("gpt2",))
        published.required("n_inner", None, (None, 4 * hidden_size))
        published.required("tie_word_embeddings", True, (True,))
        published.required("scale_attn_weights", True, (True,))
        published.required("scale_attn_by_inverse_layer_idx", False, (False,))
        published.required("add_cross_attention", False, (False,))
        published.required("embd_pdrop", 0.1, (dropout,))
        published.required("attn_pdrop", 0.1, (dropout,))
        return cls(
            layers=published.whole("n_layer", 12),
            heads=published.heads("n_head", 12, "n_embd", hidden_size),
            hidden_size=hidden_size,
            positions=published.whole("n_positions", 1024),
            vocabulary_size=published.whole("vocab_size", 50257),
            activation=published.activation("activation_function", "gelu_new"),
            dropout=dropout,
            initializer_range=published.number("initializer_range", 0.02),
            layer_norm_epsilon=published.number("layer_norm_epsilon", 1e-5),
            **published.own(_OWN_FIELDS),
        )

    def to_huggingface(self) -> dict[str, Any]:
        """The content of `config.json`, without the ids of special tokens, which belong to the tokenizer."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocabulary_size,
            "n_positions": self.positions,
            "n_ctx": self.positions,
            "n_embd": self.hidden_size,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": None,
            "activation_function": HUGGINGFACE_ACTIVATIONS[self.activation],
            "resid_pdrop": self.dropout,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": True,
            **own_switches(self, _OWN_FIELDS),
        }

    def normalisation(self) -> nn.LayerNorm:
        """A layer normalisation of this model."""
        return layer_norm(self.hidden_size, self.layer_norm_epsilon, self.biases)


class Projection(nn.Module):
    """An affine map whose weight is stored (in, out), as the original TensorFlow code did."""

    bias: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    """Causal self-attention over several heads."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = Projection(config.hidden_size, 3 * config.hidden_size, config.biases)
        self.c_proj = Projection(config.hidden_size, config.hidden_size, config.biases)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape; `mask` as in `document_mask`, None: causal alone"""
        query, key, value = self.parts(x)
        dropout = self.dropout if self.training else 0.0
        mixed = attention(query, key, value, mask, dropout, causal=mask is None)
        return F.dropout(self.joined(mixed), self.dropout, self.training)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, sequence, hidden) -> queries, keys and values, each (batch, heads, sequence, hidden / heads)"""
        batch, length, hidden = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(hidden, dim=2)
        )
        return query, key, value

    def joined(self, mixed: Tensor) -> Tensor:
        """What all heads found, (batch, heads, sequence, hidden / heads) -> (batch, sequence, hidden)"""
        joined: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return joined


class FeedForward(nn.Module):
    """Two projections with a GELU between them."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.approximate = GELU[config.activation]
        self.dropout = config.dropout
        self.c_fc = Projection(config.hidden_size, 4 * config.hidden_size, config.biases)
        self.c_proj = Projection(4 * config.hidden_size, config.hidden_size, config.biases)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        active = F.gelu(self.c_fc(x), approximate=self.approximate)
        return F.dropout(self.c_proj(active), self.dropout, self.training)


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.ln_1 = config.normalisation()
        self.attn = Attention(config)
        self.ln_2 = config.normalisation()
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        x = x + self.attn(self.ln_1(x), mask)
        fed: Tensor = self.mlp(self.ln_2(x))
        return x + fed


class Transformer(nn.Module):
    """Embeddings, layers and the last normalisation."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.wte = embedding(config.vocabulary_size, config.hidden_size)
        self.wpe = embedding(config.positions, config.hidden_size)
        self.h = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.ln_f = config.normalisation()

    def forward(self, input_ids: Tensor, mask: Tensor | None, recompute: Callable[..., Tensor] | None) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden)"""
        x = self.wte(input_ids) + self.wpe.weight[: input_ids.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        normalised: Tensor = self.ln_f(through_layers(self.h, x, mask, recompute=recompute))
        return normalised


def document_mask(document_ids: Tensor) -> Tensor:
    """Which places each one sees: itself and those before it in the same document.

    Args:
        document_ids: (batch, sequence), equal for tokens of one document.

    Returns:
        (batch, 1, sequence, sequence) bool.
    """
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same.tril()


class Gpt2(LanguageModel):
    """A GPT-2 language model: token ids in, logits of each next token out."""

    def __init__(self, config: Gpt2Config) -> None:
        """The module with weights yet unset: call `initialise`, or load a state dict."""
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """The loss of a batch: "next_token".

        Args:
            batch: `input_ids` and `labels`, (batch, sequence) int64, -100 where nothing is scored; `document_ids`, if
                attention is to stay within documents.
        """
        logits = self.logits(batch["input_ids"], batch.get("document_ids"))
        return {"next_token": cross_entropy(logits, batch["labels"])}

    def logits(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Logits of the token after each one.

        Args:
            input_ids: (batch, sequence) int64, sequence at most ``config.positions``.
            document_ids: (batch, sequence), equal for tokens of one document: attention stays within documents, whose
                positions go on counting from the start of the sequence. None: all that comes before is seen.

        Returns:
            (batch, sequence, vocabulary).

        Raises:
            ValueError: the sequences are too long.
        """
        return self.head(self.hidden(input_ids, document_ids))

    def hidden(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """What the head reads, (batch, sequence, hidden); arguments and errors as of `logits`."""
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")
        mask = None if document_ids is None else document_mask(document_ids)
        hidden: Tensor = self.transformer(input_ids, mask, self.recompute)
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocabulary): logits of the token after each place, of all places or only some."""
        return F.linear(hidden, self.transformer.wte.weight)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters.

        Normal with ``initializer_range``, for projections into the residual stream divided by sqrt(2 layers)
        (section 2.3 of the paper); biases 0, normalisation 1.
        """
        spread = self.config.initializer_range
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
                    continue
                residual = name.endswith("c_proj.weight")
                std = spread / math.sqrt(2 * self.config.layers) if residual else spread
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))

    @classmethod
    def from_folder(cls, folder: Path, expected: Gpt2Config | None = None) -> Gpt2:
        """The model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        Args:
            folder: read as it is; nothing in it is executed or unpickled.
            expected: the architecture that the weights must fit, and the dropout to train them with; None: the folder's.

        Raises:
            ValueError: the architecture is another one, or parameters are missing, unknown, or of another shape.
            OSError: a file is absent.
        """
        model = cls(folder_config(folder, Gpt2Config, expected, _FREE_FIELDS))
        weights = read_weights(folder, model.state_dict(), _own_name, _COPIES, model._absent_biases())
        model.load_state_dict(weights)
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json`, `generation_config.json` and `model.safetensors` (float32) into an existing folder.

        Args:
            tokens: such as `bos_token_id` and `eos_token_id`.
        """
        weights = {**self.state_dict(), **self._absent_biases()}
        write_folder(folder, self.config.to_huggingface(), tokens, weights, generates=True)

    def _absent_biases(self) -> dict[str, Tensor]:
        """Zeros for the biases that `transformers` has and this model has not."""
        if self.config.biases:
            return {}
        return {
            name[: -len("weight")] + "bias": torch.zeros(parameter.shape[-1])
            for name, parameter in self.named_parameters()
            if not name.endswith(("wte.weight", "wpe.weight"))
        }


def _own_name(published: str) -> str | None:
    """The first release's names lack the prefix."""
    if published.endswith(_MASK_BUFFERS):
        return None
    return published if published.startswith(("transformer.", "lm_head.")) else "transformer." + published
