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
    """How many there are."""

    @property
    def numbers(self) -> int:
        """Numbers that are learnt."""
        numbers = self.times
        for size in self.shape:
            numbers *= size
        return numbers


class Lengths(NamedTuple):
    """Positions of one sequence, padding included, that pass through the parts of a model: shapes are static."""

    source: int
    """Of the encoder, or of a model that has no other part."""
    target: int
    """Of a decoder that reads a source; 0 where there is none."""
    scored: int
    """For which the vocabulary's logits are computed, unused ones included."""


class Product(NamedTuple):
    """Equal products of matrices (rows, inner) and (inner, columns), in one forward pass of one sequence."""

    rows: int
    inner: int
    columns: int
    times: int = 1
    recomputed: bool = True
    """With activation checkpointing, the backward pass makes it again: so in layers, but for a last product whose result no
    gradient needs, and not in heads."""

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.times * self.rows * self.inner * self.columns


def attention_products(queries: int, keys: int, width: int, inner: int, heads: int) -> Iterator[Product]:
    """Yield the products of a sublayer in which `queries` positions attend to `keys`, its four projections included.

    Scores that a causal mask hides count: kernels differ in whether they compute them, published figures count them.

    Args:
        width: of the residual stream.
        inner: of all heads together.
    """
    yield Product(queries, width, inner)
    yield Product(keys, width, inner, times=2)
    yield Product(queries, inner // heads, keys, times=heads)
    yield Product(queries, keys, inner // heads, times=heads)
    yield Product(queries, inner, width)
