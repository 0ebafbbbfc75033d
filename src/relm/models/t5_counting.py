"""Tensors and activations of a T5 or mT5. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.counting import (
    FLOAT,
    ID,
    Activations,
    Computing,
    Lengths,
    Tensors,
    attention_bytes,
    attention_scores,
    loss_bytes,
    projection,
    sublayer_bytes,
)
from relm.models.t5_configuration import T5Config


def t5_tensors(config: T5Config, lengths: Lengths) -> Iterator[Tensors]:
    """Yield all tensors; encoder and decoder share the token embedding, but not the table of position biases."""
    source, target, table = lengths.source, lengths.target, (config.vocabulary_size, config.hidden_size)
    yield Tensors("token_embedding", table)
    yield Tensors("position_embeddings", (config.relative_attention_buckets, config.heads), 2)
    for _ in range(config.layers):
        yield from _sublayers(config, source, [source])
    for _ in range(config.decoder_layers or config.layers):
        yield from _sublayers(config, target, [target, source])
    yield Tensors("vectors", (config.hidden_size,), 2)  # at the end of each stack
    yield Tensors("tied_head" if config.tied_head else "head", table, rows=lengths.scored, recomputed=False)


def _sublayers(config: T5Config, rows: int, attended: list[int]) -> Iterator[Tensors]:
    """Yield the tensors of a layer of `rows` positions, with a sublayer of attention for each number of attended positions."""
    width, inner, wide = config.hidden_size, config.heads * config.head_size, config.intermediate_size
    for keys in attended:
        yield from projection(width, inner, rows)
        yield from projection(width, inner, keys, times=2)
        yield attention_scores(rows, keys, inner)
        yield from projection(inner, width, rows)
    yield from projection(width, wide, rows, times=2 if config.feed_forward == "gated_gelu" else 1)
    yield Tensors("matrices", (width, wide), rows=rows, recomputed=config.dropout > 0)
    yield Tensors("vectors", (width,), len(attended) + 1)  # before each sublayer


def t5_activations(config: T5Config, lengths: Lengths, how: Computing) -> Iterator[Activations]:
    """Yield the activations of one sequence: those of the encoder's and the decoder's layers, then of the rest."""
    source, target, scored, width = lengths.source, lengths.target, lengths.scored, config.hidden_size
    yield _encoder_layer(config, source, how)
    yield _decoder_layer(config, source, target, how)
    logits, gradients = loss_bytes(how, scored, config.vocabulary_size)
    # Embeddings; the masks of their dropout and of the stacks' results; the input and the result of the last normalisations.
    streams = (5 if config.dropout else 3) * FLOAT * (source + target) * width
    # The position biases of both stacks, the encoder's with each sequence's padding.
    biases = FLOAT * config.heads * (source * source + target * target)
    kept = ID * (source + target) + streams + biases + how.element * (source + target) * width + logits
    yield Activations(kept=kept, temporary=gradients)


def _encoder_layer(config: T5Config, length: int, how: Computing) -> Activations:
    kept, scores = _attention(config, length, length, how, learnt_bias=True)
    feed_forward, gradients = _feed_forward(config, length, how)
    stream = FLOAT * length * config.hidden_size
    return Activations(kept + feed_forward, 3 * stream + max(scores, gradients), config.layers, inputs=stream)


def _decoder_layer(config: T5Config, source: int, target: int, how: Computing) -> Activations:
    kept, scores = _attention(config, target, target, how, learnt_bias=True)
    cross, cross_scores = _attention(config, target, source, how)
    feed_forward, gradients = _feed_forward(config, target, how)
    # The gradient of the encoder's output is summed over layers.
    streams = FLOAT * (source + 3 * target) * config.hidden_size
    return Activations(
        kept=kept + cross + feed_forward,
        temporary=streams + max(scores, cross_scores, gradients),
        times=config.decoder_layers or config.layers,
        inputs=FLOAT * target * config.hidden_size,
    )


def _attention(config: T5Config, queries: int, keys: int, how: Computing, learnt_bias: bool = False) -> tuple[int, int]:
    """Return the bytes that a sublayer of attention keeps, its normalisation and dropout included, and its temporary bytes."""
    width = config.hidden_size
    inner, dropout = config.heads * config.head_size, config.dropout > 0
    kept, temporary = attention_bytes(how, queries, keys, inner, config.heads, dropout, learnt_bias)
    # One input for queries, keys and values; in cross-attention keys and values read the encoder's output, which is kept once.
    copies = 2 * keys if how.copies else 0
    kept += how.element * (queries + copies) * width
    return kept + _around(config, queries, how), temporary


def _feed_forward(config: T5Config, rows: int, how: Computing) -> tuple[int, int]:
    """Return the bytes that a feed-forward sublayer keeps, its normalisation and dropout included, and its temporary bytes."""
    wide = how.element * rows * config.intermediate_size
    # Results of the projections and of the activation, their product, and dropout's result; a compiler computes one again.
    results = (3 if how.compiled else 4) if config.feed_forward == "gated_gelu" else 2
    masks = how.mask * rows * config.intermediate_size if config.dropout else 0
    kept = results * wide + masks + how.element * rows * config.hidden_size
    return kept + _around(config, rows, how), 3 * wide


def _around(config: T5Config, rows: int, how: Computing) -> int:
    """Return the bytes of a normalisation's input and its result before the weight, and of the mask of a sublayer's result."""
    return sublayer_bytes(rows, config.hidden_size, 1 if how.compiled else 2, 1, how.mask if config.dropout else 0)
