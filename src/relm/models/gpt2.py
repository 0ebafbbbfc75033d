"""GPT-2 in plain torch, under the parameter names and layouts of Hugging Face's ``GPT2LMHeadModel``.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": a decoder with learnt positions,
normalisation before each sublayer, and a head tied to the token embedding. Imports nothing of this package beside
`relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relm.models.attention import attention
from relm.models.configuration import folder_config
from relm.models.contract import LanguageModel
from relm.models.gpt2_configuration import FREE_FIELDS, Gpt2Config
from relm.models.layers import GELU, TracedModule, embedding, layer_norm, through_layers
from relm.models.llm_c_weights import draw_as_llm_c
from relm.models.losses import Term, cross_entropy_in_chunks
from relm.models.segments import ModelSegment, State, state_of
from relm.models.weights import read_weights, write_folder

# Published files may hold these buffers with the causal mask beside the parameters.
_MASK_BUFFERS = (".attn.bias", ".attn.masked_bias")
_COPIES = {"lm_head.weight": "transformer.wte.weight"}


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


class Attention(TracedModule):
    """Causal self-attention over several heads."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = Projection(config.hidden_size, 3 * config.hidden_size, config.biases)
        self.c_proj = Projection(config.hidden_size, config.hidden_size, config.biases)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, sequence, hidden) -> the same shape; `mask` from `document_mask`, None: causal"""
        query, key, value = self.parts(x)
        dropout = self.dropout if self.training else 0.0
        mixed = attention(query, key, value, mask, dropout, causal=mask is None, traced=self.traced)
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
        """Concatenate and project the heads, (batch, heads, sequence, hidden / heads) -> (batch, sequence, hidden)"""
        output: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return output


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
        self.ln_1 = layer_norm(config.hidden_size, config.layer_norm_epsilon, config.biases)
        self.attn = Attention(config)
        self.ln_2 = layer_norm(config.hidden_size, config.layer_norm_epsilon, config.biases)
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
        self.ln_f = layer_norm(config.hidden_size, config.layer_norm_epsilon, config.biases)

    def forward(self, input_ids: Tensor, mask: Tensor | None, recompute: Callable[..., Tensor] | None) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden)"""
        x = self.with_positions(self.wte(input_ids))
        normalised: Tensor = self.ln_f(through_layers(self.h, x, mask, recompute=recompute))
        return normalised

    def with_positions(self, x: Tensor) -> Tensor:
        """Add the embeddings of positions, (batch, sequence, hidden) -> the same shape"""
        x = x + self.wpe.weight[: x.shape[1]]
        return F.dropout(x, self.dropout, self.training)


def document_mask(document_ids: Tensor) -> Tensor:
    """Return the attention mask with which a token attends to itself and to those before it in the same document.

    Args:
        document_ids: (batch, sequence), equal for tokens of one document.

    Returns:
        (batch, 1, sequence, sequence) bool.
    """
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same.tril()


def _mask(document_ids: Tensor | None) -> Tensor | None:
    """Return `document_mask`; None, which stands for causal attention, without documents."""
    return None if document_ids is None else document_mask(document_ids)


class Gpt2(LanguageModel):
    """A GPT-2 language model, from token ids to logits of each next token."""

    def __init__(self, config: Gpt2Config) -> None:
        """Build the module with unset weights: call `initialise`, or load a state dict."""
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)

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
            ModelSegment("position_embedding", names("transformer.wpe."), self._add_positions),
            *layers,
            ModelSegment(
                "head", names("transformer.wte."), lambda batch, state: state_of(self._scored(state["hidden"], batch))
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
        mask = _mask(batch.get("document_ids"))
        hidden = through_layers([self.transformer.h[number]], state["hidden"], mask, recompute=self.recompute)
        return {"hidden": self.transformer.ln_f(hidden) if self._after_layer(number) else hidden}

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss at the head's input."""
        return {"next_token": cross_entropy_in_chunks(self.head(hidden), batch["labels"], self.loss_chunk, self.traced)}

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
        hidden: Tensor = self.transformer(input_ids, _mask(document_ids), self.recompute)
        return hidden

    def _require_positions(self, input_ids: Tensor) -> None:
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")

    def head(self, hidden: Tensor) -> Tensor:
        """(..., hidden) at any positions -> (..., vocabulary), the logits of each next token"""
        return self.project_vocabulary(hidden, self.transformer.wte.weight, None)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters.

        Matrices are normal with standard deviation ``initializer_range``, divided by sqrt(2 layers) for projections into
        the residual stream (section 2.3 of the paper); biases are 0, normalisation weights 1.
        """
        spread = self.config.initializer_range
        if self.config.initialisation != "normal":
            draw_as_llm_c(self.named_parameters(), generator, spread, self.config)
            return
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
        """Load the model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        Args:
            folder: nothing in it is executed or unpickled.
            expected: the architecture that the weights must fit, and the dropout to train them with; None: the folder's.

        Raises:
            ValueError: the architecture is another one, or parameters are missing, unknown, or of another shape.
            OSError: a file is absent.
        """
        model = cls(folder_config(folder, Gpt2Config, expected, FREE_FIELDS))
        weights = read_weights(folder, model.state_dict(), _own_name, _COPIES, model._absent_biases())
        model.load_state_dict(weights)
        return model

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json`, `generation_config.json` and `model.safetensors` (float32) into an existing folder.

        Args:
            tokens: ids of special tokens, such as `bos_token_id` and `eos_token_id`.
        """
        write_folder(folder, self.config.to_huggingface(), tokens, self.huggingface_weights(), generates=True)

    def huggingface_weights(self) -> dict[str, Tensor]:
        """Return the weights under the names of `GPT2LMHeadModel`, with zeros for biases that this model lacks."""
        return {**self.state_dict(), **self._absent_biases()}

    def _absent_biases(self) -> dict[str, Tensor]:
        """Return zeros for the biases that `transformers` has and this model lacks."""
        if self.config.biases:
            return {}
        return {
            name[: -len("weight")] + "bias": torch.zeros(parameter.shape[-1])
            for name, parameter in self.named_parameters()
            if not name.endswith(("wte.weight", "wpe.weight"))
        }


def _own_name(published: str) -> str | None:
    """Return the module's name for a name in a file, which lacks the prefix in the first release; None for a mask buffer."""
    if published.endswith(_MASK_BUFFERS):
        return None
    return published if published.startswith(("transformer.", "lm_head.")) else "transformer." + published
