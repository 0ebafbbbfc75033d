"""Parameters, matrix products and activations of a T5 or mT5. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.counting import (
    FLOAT,
    ID,
    Activations,
    Computing,
    Lengths,
    Product,
    Weights,
    attention_bytes,
    attention_products,
    loss_bytes,
)
from relm.models.t5_configuration import T5Config


def t5_weights(config: T5Config) -> Iterator[Weights]:
    """Yield all parameters; encoder and decoder share the token embedding, and each has its own table of position biases."""
    width, inner, wide = config.hidden_size, config.heads * config.head_size, config.intermediate_size
    encoder, decoder = config.layers, config.decoder_layers or config.layers
    attentions, layers = encoder + 2 * decoder, encoder + decoder
    yield Weights("token_embedding", (config.vocabulary_size, width))
    yield Weights("position_embeddings", (config.relative_attention_buckets, config.heads), 2)
    yield Weights("matrices", (inner, width), 3 * attentions)
    yield Weights("matrices", (width, inner), attentions)
    yield Weights("matrices", (wide, width), _input_projections(config) * layers)
    yield Weights("matrices", (width, wide), layers)
    # Before each sublayer, and at the end of each stack.
    yield Weights("vectors", (width,), attentions + layers + 2)
    if not config.tied_head:
        yield Weights("head", (config.vocabulary_size, width))


def t5_products(config: T5Config, lengths: Lengths) -> Iterator[Product]:
    """Yield the products of one sequence's forward pass."""
    width, inner, heads = config.hidden_size, config.heads * config.head_size, config.heads
    source, target = lengths.source, lengths.target
    for _ in range(config.layers):
        yield from attention_products(queries=source, keys=source, width=width, inner=inner, heads=heads)
        yield from _feed_forward_products(config, source)
    for _ in range(config.decoder_layers or config.layers):
        yield from attention_products(queries=target, keys=target, width=width, inner=inner, heads=heads)
        yield from attention_products(queries=target, keys=source, width=width, inner=inner, heads=heads)
        yield from _feed_forward_products(config, target)
    yield Product(lengths.scored, width, config.vocabulary_size, recomputed=False)


def _feed_forward_products(config: T5Config, rows: int) -> Iterator[Product]:
    yield Product(rows, config.hidden_size, config.intermediate_size, times=_input_projections(config))
    yield Product(rows, config.intermediate_size, config.hidden_size, recomputed=config.dropout > 0)


def _input_projections(config: T5Config) -> int:
    """Return the count of projections that read a feed-forward sublayer's input."""
    return 2 if config.feed_forward == "gated_gelu" else 1


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
    return kept + _normalisation_and_dropout(config, queries, how), temporary


def _feed_forward(config: T5Config, rows: int, how: Computing) -> tuple[int, int]:
    """Return the bytes that a feed-forward sublayer keeps, its normalisation and dropout included, and its temporary bytes."""
    wide = how.element * rows * config.intermediate_size
    # Results of the projections and of the activation, their product, and dropout's result; a compiler computes one again.
    results = (3 if how.compiled else 4) if config.feed_forward == "gated_gelu" else 2
    masks = how.mask * rows * config.intermediate_size if config.dropout else 0
    kept = results * wide + masks + how.element * rows * config.hidden_size
    return kept + _normalisation_and_dropout(config, rows, how), 3 * wide


def _normalisation_and_dropout(config: T5Config, rows: int, how: Computing) -> int:
    """Return the bytes of a normalisation's input and its result before the weight, and of the mask of a sublayer's result."""
    masks = how.mask if config.dropout else 0
    normalisation = FLOAT if how.compiled else 2 * FLOAT
    return rows * ((normalisation + masks) * config.hidden_size + FLOAT)
