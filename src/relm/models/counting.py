"""Records in which an architecture counts its parameters and its matrix products. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Weights(NamedTuple):
    """Parameters of one kind and shape."""

    kind: str
    """token_embedding; position_embeddings: positions, segments or distances; matrices; vectors: biases and normalisation;
    head: a projection to the vocabulary that is not tied."""
    shape: tuple[int, ...]
    times: int = 1
    """Count of tensors of this shape."""

    @property
    def numbers(self) -> int:
        """Return the count of parameters."""
        numbers = self.times
        for size in self.shape:
            numbers *= size
        return numbers


class Lengths(NamedTuple):
    """Positions of one sequence, padding included, in each part of a model; shapes are static."""

    source: int
    """Positions in the encoder, or in a model that has no other part."""
    target: int
    """Positions in a decoder that reads a source; 0 without one."""
    scored: int
    """Positions with logits over the vocabulary, unused ones included."""


class Product(NamedTuple):
    """Equal products of matrices (rows, inner) and (inner, columns), in one forward pass of one sequence."""

    rows: int
    inner: int
    columns: int
    times: int = 1
    recomputed: bool = True
    """True: activation checkpointing repeats the product in the backward pass, as it does in layers, except for a last
    product whose result no gradient needs, and not in heads."""

    @property
    def operations(self) -> int:
        """Return the count of multiplications and additions."""
        return 2 * self.times * self.rows * self.inner * self.columns


def attention_products(queries: int, keys: int, width: int, inner: int, heads: int) -> Iterator[Product]:
    """Yield the products of a sublayer in which `queries` positions attend to `keys`, its four projections included.

    Scores under a causal mask count: kernels differ in whether they compute them, published figures count them.

    Args:
        width: width of the residual stream.
        inner: width of all heads together.
    """
    yield Product(queries, width, inner)
    yield Product(keys, width, inner, times=2)
    yield Product(queries, inner // heads, keys, times=heads)
    yield Product(queries, keys, inner // heads, times=heads)
    yield Product(queries, inner, width)
