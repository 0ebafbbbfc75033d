"""The BERT of TensorFlow 1 in numpy and float64, written from the formulas of modeling.py over its variables' names.

Both Google's (github.com/google-research/bert) and that of Graphcore's examples v3.0.0, whose switches follow from the
variables that there are.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.special import erf, log_softmax, softmax

Array = npt.NDArray[np.float64]
# Added to the scores of positions that are not attended to, in place of minus infinity.
NOT_ATTENDED = -1000.0


class TensorflowBert:
    """A model in evaluation mode."""

    def __init__(self, variables: Mapping[str, npt.ArrayLike], heads: int) -> None:
        self.variables = {name: np.asarray(value, dtype=np.float64) for name, value in variables.items()}
        self.heads = heads
        self.is_graphcore = any("/projection/" in name for name in variables)
        self.layers = 1 + max(int(name.split("/")[2][len("layer_") :]) for name in variables if "/layer_" in name)

    def encode(self, ids: Array, positions: Array, segments: Array, attended: Array) -> Array:
        """(batch, sequence) of each; `attended` is true for tokens -> (batch, sequence, hidden)"""
        embeddings = {name: self.variables[f"bert/embeddings/{name}_embeddings"] for name in ("word", "position", "token_type")}
        x = embeddings["word"][ids] + embeddings["position"][positions] + embeddings["token_type"][segments]
        x = self.normalise("bert/embeddings", x)
        for number in range(self.layers):
            x = self.layer(f"bert/encoder/layer_{number}", x, np.where(attended, 0.0, NOT_ATTENDED)[:, None, None, :])
        return x

    def layer(self, name: str, x: Array, mask: Array) -> Array:
        projection = f"{name}/attention/{'projection' if self.is_graphcore else 'output'}"
        query, key, value = (self.split(self.dense(f"{name}/attention/self/{part}", x)) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(query.shape[-1]) + mask
        mixed = (softmax(scores, axis=-1) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.normalise(projection, self.dense(f"{projection}/dense", mixed) + x)
        inner = self.gelu(self.dense(f"{name}/intermediate/dense", x))
        return self.normalise(f"{name}/output", self.dense(f"{name}/output/dense", inner) + x)

    def split(self, x: Array) -> Array:
        """(batch, sequence, hidden) -> (batch, heads, sequence, hidden / heads)"""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)

    def dense(self, name: str, x: Array) -> Array:
        return x @ self.variables[f"{name}/kernel"] + self.variables.get(f"{name}/bias", 0.0)

    def normalise(self, name: str, x: Array) -> Array:
        """Group normalisation with one group, which is layer normalisation."""
        gamma, beta = (self.variables[f"{name}/LayerNorm/{part}"] for part in ("gamma", "beta"))
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return gamma * (x - mean) / np.sqrt(variance + (1e-3 if self.is_graphcore else 1e-12)) + beta

    def gelu(self, x: Array) -> Array:
        """The form that each device computes: the tangent on an IPU, the error function where Google's weights are used."""
        if self.is_graphcore:
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf(x / np.sqrt(2)))

    def logits(self, hidden: Array) -> Array:
        """(..., hidden) -> (..., vocabulary)"""
        transform = "cls/predictions/transform"
        if f"{transform}/dense/kernel" in self.variables:
            hidden = self.normalise(transform, self.gelu(self.dense(f"{transform}/dense", hidden)))
        words = self.variables["bert/embeddings/word_embeddings"]
        return hidden @ words.T + self.variables.get("cls/predictions/output_bias", 0.0)

    def pair_logits(self, first: Array) -> Array:
        """The first token, (batch, hidden) -> (batch, 2)"""
        pooled = np.tanh(self.dense("bert/pooler/dense", first))
        weights, bias = (self.variables[f"cls/seq_relationship/output_{part}"] for part in ("weights", "bias"))
        return pooled @ weights.T + bias


def negative_log_likelihood(logits: Array, labels: Array) -> Array:
    """(..., classes) and (...) -> (...), in nats"""
    return -np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)[..., 0]
