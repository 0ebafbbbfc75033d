"""Records in which an architecture declares the sizes of its tensors and counts its activations. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# Bytes of a float32 and of an integer id.
FLOAT, ID = 4, 8


class Tensors(NamedTuple):
    """Equal tensors of a model, parameters or attention's keys and values, and their products."""

    kind: str
    """token_embedding; position_embeddings: positions, segments or distances; matrices; vectors: biases and normalisation;
    head: a projection to the vocabulary. No parameters: tied_head, which is the token embedding; scores: keys and values."""
    shape: tuple[int, ...]
    times: int = 1
    """Number of tensors of this shape."""
    rows: int = 0
    """Positions of one sequence that its forward pass multiplies by each of them."""
    segment: str = ""
    """Segment of the model that reads parameters first (`relm.models.segments`); empty in a model without segments."""
    recomputed: bool = True
    """True: activation checkpointing repeats the product in the backward pass, as it does in layers, except for a last
    product whose result no gradient needs, and not in heads."""

    @property
    def size(self) -> int:
        """Return the number of elements in one tensor."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def numbers(self) -> int:
        """Return the number of elements in all of them."""
        return self.times * self.size

    @property
    def operations(self) -> int:
        """Return the number of multiplications and additions in the forward pass."""
        return 2 * self.rows * self.numbers


class Lengths(NamedTuple):
    """Positions of one sequence, padding included, in each part of a model; shapes are static."""

    source: int
    """Positions in the encoder, or in a model that has no other part."""
    target: int
    """Positions in a decoder that reads a source; 0 without one."""
    scored: int
    """Positions with logits over the vocabulary, unused ones included."""
    document_mask: bool = False
    """Attention has a mask for each sequence, which keeps it within documents."""


def projection(inner: int, outer: int, rows: int, bias: bool = False, times: int = 1, segment: str = "") -> Iterator[Tensors]:
    """Yield weights stored (out, in), which multiply `rows` positions, and their biases."""
    yield Tensors("matrices", (outer, inner), times, rows, segment)
    if bias:
        yield Tensors("vectors", (outer,), times, segment=segment)


def attention_scores(queries: int, keys: int, width: int) -> Tensors:
    """Return the keys and values of all heads, `width` wide together, which multiply the queries and probabilities.

    Scores under a causal mask count: kernels differ in whether they compute them, published figures count them.
    """
    return Tensors("scores", (keys, width), times=2, rows=queries)


class Computing(NamedTuple):
    """Facts of a device and a precision that the size of activations depends on."""

    element: int
    """Bytes of a number in the precision of matrix products."""
    mask: int
    """Bytes of dropout's mask for each number."""
    attention: str
    """products: torch computes attention with dropout or a learnt bias by plain products in float32; fused: one kernel, which
    keeps no scores; written_out: plain products that a compiler fuses."""
    compiled: bool
    """A compiler drops copies, and recomputes cheap operations instead of keeping their results."""
    loss_chunk: int | None = None
    """Positions of a sequence whose logits are in memory at once; None: all."""

    @property
    def copies(self) -> bool:
        """Each projection keeps a separate copy of an input in float32."""
        return self.element < FLOAT and not self.compiled


class Activations(NamedTuple):
    """Bytes that one sequence needs in equal layers of a model, or in one other part."""

    kept: int
    """Bytes that the forward pass keeps for the backward pass."""
    temporary: int
    """Most additional bytes at any moment of either pass."""
    times: int = 1
    """Number of layers."""
    inputs: int | None = None
    """Bytes kept instead with activation checkpointing; None: this part is not recomputed."""


def attention_bytes(
    how: Computing, queries: int, keys: int, inner: int, heads: int, dropout: bool, learnt_bias: bool = False
) -> tuple[int, int]:
    """Return the bytes that attention keeps, from queries, keys and values to its output, and its temporary bytes.

    `inner` is the width of all heads together. With a `learnt_bias`, which has a gradient, each layer keeps a copy of that bias
    in lower precision.
    """
    scores, projected, output = heads * queries * keys, (queries + 2 * keys) * inner, how.element * queries * inner
    if how.attention == "written_out":
        kept = how.element * scores + (how.mask * scores if dropout else 0)
        return kept + how.element * projected + output, 2 * FLOAT * scores
    if how.attention == "products" and (dropout or learnt_bias):
        # Softmax, dropout's mask and their product; in the backward pass the gradients of the latter and of the scores.
        return (3 if dropout else 1) * FLOAT * scores + FLOAT * projected + output, 3 * FLOAT * scores
    bias = how.element * scores if learnt_bias and how.element < FLOAT else 0
    statistics = FLOAT * heads * queries
    return bias + statistics + how.element * projected + output, 2 * FLOAT * scores if learnt_bias else FLOAT * projected


def sublayer_bytes(rows: int, width: int, inputs: int, statistics: int, mask: int) -> int:
    """Return the bytes around a sublayer: float32 copies (`inputs`) of its normalisation's input, statistics, and a mask."""
    return rows * ((FLOAT * inputs + mask) * width + FLOAT * statistics)


def loss_bytes(how: Computing, scored: int, classes: int) -> tuple[int, int]:
    """Return the bytes that the loss keeps of logits, and its temporary bytes: their gradients.

    These are twice in float32 without a compiler; with one they are once in the precision of products, and where it makes one
    program of the whole pass they replace the logits.
    """
    if how.loss_chunk is not None:
        # Logits in the precision of products, in float32, and their logarithms, which become the gradient.
        halves = how.element if how.element < FLOAT else 0
        return ID * scored, (2 * FLOAT + halves) * min(how.loss_chunk, scored) * classes
    logits = scored * classes
    temporary = 2 * FLOAT * logits
    if how.compiled:
        temporary = 0 if how.attention == "written_out" else how.element * logits
    return FLOAT * logits + ID * scored, temporary
