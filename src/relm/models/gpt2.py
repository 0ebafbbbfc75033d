"""GPT-2 in plain torch, under the parameter names and layouts of Hugging Face's ``GPT2LMHeadModel``.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": a decoder with learnt positions,
normalisation before each sublayer, and a head tied to the token embedding. Imports nothing of this package, and imports
on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED_LABEL = -100
_GELU = {"gelu_tanh": "tanh", "gelu_erf": "none"}
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_erf"}
_HUGGINGFACE_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}
# What a published file may hold beside the parameters: buffers with the causal mask.
_MASK_BUFFERS = (".attn.bias", ".attn.masked_bias")
# Two models that differ in these alone have interchangeable weights.
_FREE_FIELDS = ("dropout", "initializer_range")


@dataclasses.dataclass(frozen=True)
class Gpt2Config:
    """The architecture: what `config.json` says, in this project's words."""

    layers: int
    heads: int
    hidden_size: int
    positions: int
    vocabulary_size: int
    activation: str = "gelu_tanh"
    dropout: float = 0.1
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Gpt2Config:
        """The architecture in a `config.json` of `GPT2LMHeadModel`.

        Raises:
            ValueError: it describes a model that this class cannot be; names the key.
        """
        _check_supported(config)
        hidden_size = config.get("n_embd", 768)
        return cls(
            layers=config.get("n_layer", 12),
            heads=config.get("n_head", 12),
            hidden_size=hidden_size,
            positions=config.get("n_positions", 1024),
            vocabulary_size=config.get("vocab_size", 50257),
            activation=_ACTIVATIONS[config.get("activation_function", "gelu_new")],
            dropout=config.get("resid_pdrop", 0.1),
            initializer_range=config.get("initializer_range", 0.02),
            layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
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
            "activation_function": _HUGGINGFACE_ACTIVATIONS[self.activation],
            "resid_pdrop": self.dropout,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": True,
        }


def _check_supported(config: Mapping[str, Any]) -> None:
    """Refuse a `config.json` whose model computes something else than `Gpt2` does."""
    hidden_size = config.get("n_embd", 768)
    dropout = config.get("resid_pdrop", 0.1)
    required: dict[str, tuple[Any, ...]] = {
        "model_type": ("gpt2",),
        "activation_function": tuple(_ACTIVATIONS),
        "n_inner": (None, 4 * hidden_size),
        "tie_word_embeddings": (True,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "embd_pdrop": (dropout,),
        "attn_pdrop": (dropout,),
    }
    defaults = {"embd_pdrop": 0.1, "attn_pdrop": 0.1, "activation_function": "gelu_new"}
    for key, allowed in required.items():
        found = config.get(key, defaults.get(key, allowed[0]))
        if found not in allowed:
            expected = " or ".join(json.dumps(value) for value in allowed)
            raise ValueError(f"config.json: {key} is {found!r}, expected {expected}: not a GPT-2 as this class knows it")


class Projection(nn.Module):
    """An affine map whose weight is stored (in, out), as the original TensorFlow code did."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Attention(nn.Module):
    """Causal self-attention over several heads."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = Projection(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = Projection(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        batch, length, hidden = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(hidden, dim=2)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        mixed = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return F.dropout(mixed, self.dropout, self.training)


class FeedForward(nn.Module):
    """Two projections with a GELU between them."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.approximate = _GELU[config.activation]
        self.dropout = config.dropout
        self.c_fc = Projection(config.hidden_size, 4 * config.hidden_size)
        self.c_proj = Projection(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        active = F.gelu(self.c_fc(x), approximate=self.approximate)
        return F.dropout(self.c_proj(active), self.dropout, self.training)


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> the same shape"""
        x = x + self.attn(self.ln_1(x))
        fed: Tensor = self.mlp(self.ln_2(x))
        return x + fed


class Transformer(nn.Module):
    """Embeddings, layers and the last normalisation."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.wte = _embedding(config.vocabulary_size, config.hidden_size)
        self.wpe = _embedding(config.positions, config.hidden_size)
        self.h = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(batch, sequence) ids -> (batch, sequence, hidden)"""
        x = self.wte(input_ids) + self.wpe.weight[: input_ids.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.h:
            x = block(x)
        normalised: Tensor = self.ln_f(x)
        return normalised


def _embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding that does not spend the global generator on weights that are about to be replaced."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


class Gpt2(nn.Module):
    """A GPT-2 language model: token ids in, logits of each next token out."""

    def __init__(self, config: Gpt2Config) -> None:
        """The module with weights yet unset: call `initialise`, or load a state dict."""
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits.

        Args:
            input_ids: (batch, sequence) int64, sequence at most ``config.positions``.

        Returns:
            (batch, sequence, vocabulary) logits of the token after each one.
        """
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")
        return F.linear(self.transformer(input_ids), self.transformer.wte.weight)

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

    def parameter_count(self) -> int:
        """How many numbers are learnt; the tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

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
        found = Gpt2Config.from_huggingface(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        config = expected or found
        differing = [
            f"{field.name} is {getattr(found, field.name)!r}, expected {getattr(config, field.name)!r}"
            for field in dataclasses.fields(Gpt2Config)
            if field.name not in _FREE_FIELDS and getattr(found, field.name) != getattr(config, field.name)
        ]
        if differing:
            raise ValueError(f"{folder / 'config.json'}: {'; '.join(differing)}")
        model = cls(config)
        model.load_state_dict(_read_weights(folder / "model.safetensors", model))
        return model

    def save_folder(self, folder: Path, end_of_text_id: int) -> None:
        """Write `config.json`, `generation_config.json` and `model.safetensors` (float32) into an existing folder."""
        from safetensors.torch import save_file

        tokens = {"bos_token_id": end_of_text_id, "eos_token_id": end_of_text_id}
        _write_json(folder / "config.json", {**self.config.to_huggingface(), **tokens})
        _write_json(folder / "generation_config.json", tokens)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def causal_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the labels, as a sum so that the caller says what it is divided by.

    Args:
        logits: (batch, sequence, vocabulary), any floating type; the loss is taken in float32.
        labels: (batch, sequence) int64, the token that each position should predict; -100 is not scored.

    Returns:
        The sum in nats, and how many labels were scored.
    """
    flat = logits.reshape(-1, logits.shape[-1]).float()
    nats = F.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED_LABEL, reduction="sum")
    return nats, (labels != IGNORED_LABEL).sum()


def _read_weights(path: Path, model: Gpt2) -> dict[str, Tensor]:
    """The tensors of a published file under the parameters' names, after a strict comparison with what `model` has."""
    from safetensors.torch import load_file

    found = {}
    for name, tensor in load_file(path).items():
        if not name.endswith(_MASK_BUFFERS):
            found[name if name.startswith(("transformer.", "lm_head.")) else "transformer." + name] = tensor.float()
    head = found.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, found.get("transformer.wte.weight", head)):
        raise ValueError(f"{path}: lm_head.weight differs from wte.weight; a GPT-2's head is tied to its embedding")
    expected = model.state_dict()
    faults = [f"{name} is missing" for name in expected if name not in found]
    faults += [f"{name} is unknown" for name in found if name not in expected]
    faults += [
        f"{name} has shape {tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ValueError(f"{path}: {'; '.join(faults[:5])}{more}")
    return found


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
