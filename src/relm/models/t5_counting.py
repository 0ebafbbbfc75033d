"""Parameters and matrix products of a T5 or mT5. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.counting import Lengths, Product, Weights, attention_products
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
