"""The BERT of TensorFlow 1 by formula, in plain operations on float64, over its variables under their own names.

Both Google's (github.com/google-research/bert) and that of Graphcore's examples v3.0.0, modeling.py, whose switches follow from
the variables that there are.
"""

from collections.abc import Mapping
from math import pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

# Added to the scores of positions that are not attended to, in place of minus infinity.
NOT_ATTENDED = -1000.0


def published_name(own: str) -> str:
    """Return Graphcore's variable for one of our parameters, except for the token embedding and matrices within attention.

    >>> published_name("bert.encoder.layer.3.attention.output.LayerNorm.weight")
    'bert/encoder/layer_3/attention/projection/LayerNorm/gamma'
    """
    if own == "cls.predictions.bias":
        return "cls/predictions/output_bias"
    module, _, kind = own.rpartition(".")
    path = module.replace("encoder.layer.", "encoder/layer_").replace(".", "/")
    path = path.replace("/attention/output/", "/attention/projection/")
    if module.endswith("_embeddings"):
        return path
    if module.endswith("LayerNorm"):
        return f"{path}/{'gamma' if kind == 'weight' else 'beta'}"
    if module.endswith("seq_relationship"):
        return f"{path}/output_{'weights' if kind == 'weight' else 'bias'}"
    return f"{path}/{'kernel' if kind == 'weight' else 'bias'}"


class TensorflowBert:
    """A model without dropout."""

    def __init__(self, variables: Mapping[str, npt.ArrayLike | Tensor], heads: int) -> None:
        doubles = {name: torch.as_tensor(np.asarray(value), dtype=torch.float64) for name, value in variables.items()}
        self.variables = {name: value.requires_grad_() for name, value in doubles.items()}
        self.heads = heads
        self.is_graphcore = any("/projection/" in name for name in variables)
        self.layers = 1 + max(int(name.split("/")[2][len("layer_") :]) for name in variables if "/layer_" in name)

    def encode(self, ids: Tensor, positions: Tensor, segments: Tensor, attended: Tensor) -> Tensor:
        """(batch, sequence) of each; `attended` is true for tokens -> (batch, sequence, hidden)"""
        words, places, kinds = (
            self.variables[f"bert/embeddings/{name}_embeddings"] for name in ("word", "position", "token_type")
        )
        x = self.normalise("bert/embeddings", words[ids] + places[positions] + kinds[segments])
        mask = (1.0 - attended.double()) * NOT_ATTENDED
        for number in range(self.layers):
            x = self.layer(f"bert/encoder/layer_{number}", x, mask[:, None, None, :])
        return x

    def layer(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        projection = f"{name}/attention/{'projection' if self.is_graphcore else 'output'}"
        query, key, value = (self.split(self.dense(f"{name}/attention/self/{part}", x)) for part in ("query", "key", "value"))
        scores = torch.exp(query @ key.transpose(2, 3) / sqrt(query.shape[-1]) + mask)
        mixed = (scores / scores.sum(-1, keepdim=True) @ value).transpose(1, 2).reshape(x.shape)
        x = self.normalise(projection, self.dense(f"{projection}/dense", mixed) + x)
        inner = self.gelu(self.dense(f"{name}/intermediate/dense", x))
        return self.normalise(f"{name}/output", self.dense(f"{name}/output/dense", inner) + x)

    def split(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) -> (batch, heads, sequence, hidden / heads)"""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def dense(self, name: str, x: Tensor) -> Tensor:
        product = x @ self.variables[f"{name}/kernel"]
        return product + self.variables[f"{name}/bias"] if f"{name}/bias" in self.variables else product

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """Normalise over the last dimension: group normalisation with one group."""
        gamma, beta = (self.variables[f"{name}/LayerNorm/{part}"] for part in ("gamma", "beta"))
        centred = x - x.mean(-1, keepdim=True)
        epsilon = 1e-3 if self.is_graphcore else 1e-12
        return gamma * centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + epsilon) + beta

    def gelu(self, x: Tensor) -> Tensor:
        """Return the form that is computed: the tangent on an IPU, the error function where Google's weights are used."""
        if self.is_graphcore:
            return 0.5 * x * (1 + torch.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + torch.erf(x / sqrt(2)))

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocabulary)"""
        transform = "cls/predictions/transform"
        if f"{transform}/dense/kernel" in self.variables:
            hidden = self.normalise(transform, self.gelu(self.dense(f"{transform}/dense", hidden)))
        logits = hidden @ self.variables["bert/embeddings/word_embeddings"].T
        return (
            logits + self.variables["cls/predictions/output_bias"]
            if "cls/predictions/output_bias" in self.variables
            else logits
        )

    def pair_logits(self, first: Tensor) -> Tensor:
        """The first token, (batch, hidden) -> (batch, 2)"""
        pooled = torch.tanh(self.dense("bert/pooler/dense", first))
        weights, bias = (self.variables[f"cls/seq_relationship/output_{part}"] for part in ("weights", "bias"))
        return pooled @ weights.T + bias

    def plain_terms(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the sums of nats of masked tokens and of pairs: tokens in their order, masked ones found by position.

        Args:
            columns: `input_ids`, `attended`, `segment_ids` (batch, sequence); `masked_positions`, `masked_labels` and
                `masked_weights` (batch, predictions); `pair_labels` (batch,).
        """
        ids = columns["input_ids"]
        hidden = self.encode(ids, torch.arange(ids.shape[1]).expand(ids.shape), columns["segment_ids"], columns["attended"])
        chosen = columns["masked_positions"][..., None].expand(-1, -1, hidden.shape[-1])
        return self.terms(hidden.gather(1, chosen), hidden[:, 0], columns)

    def remasked_terms(self, fields: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the same sums from the layout of --remask and --static-mask: masked tokens first, then [CLS] and the others.

        Args:
            fields: those of `relm.examples.as_published.graphcore_bert.remask`.
        """
        predictions, slots = fields["masked_labels"].shape[1], torch.arange(fields["input_ids"].shape[1])
        is_masked_or_later = (slots < fields["mask_padding_index"][:, None]) | (slots >= predictions)
        attended = is_masked_or_later & (slots < fields["seq_padding_index"][:, None])
        hidden = self.encode(fields["input_ids"], fields["input_position"], fields["segment_ids"], attended)
        labels = {"masked_labels": fields["masked_labels"], "masked_weights": fields["masked_lm_weights"]}
        first = hidden[:, predictions]
        return self.terms(hidden[:, :predictions], first, labels | {"pair_labels": fields["next_sentence_labels"]})

    def terms(self, masked: Tensor, first: Tensor, labels: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        nats = negative_log_likelihood(self.logits(masked), labels["masked_labels"]) * labels["masked_weights"]
        return nats.sum(), negative_log_likelihood(self.pair_logits(first), labels["pair_labels"]).sum()


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """(..., classes) and (...) -> (...), in nats"""
    return torch.log(torch.exp(logits).sum(-1)) - logits.gather(-1, labels[..., None])[..., 0]


def variables_of(model: nn.Module) -> dict[str, str]:
    """Return the variable in Graphcore's BERT of each parameter of ours."""
    names = {}
    for name, parameter in model.named_parameters():
        within = ".attention.self." in name
        names[name] = published_name(name) if not within or parameter.dim() == 1 else ""
        if within and parameter.dim() == 2:
            names[name] = name.removesuffix(".weight").replace("encoder.layer.", "encoder/layer_").replace(".", "/") + "/kernel"
    return names


def as_variable(name: str, value: Any) -> Any:
    """Return a parameter's value or gradient as TensorFlow keeps it: kernels are transposed."""
    return value.T if name.endswith("/kernel") else value
