"""Parameters and matrix products of a BERT or RoBERTa. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.bert_configuration import BertConfig
from relm.models.counting import Lengths, Product, Weights, attention_products


def bert_weights(config: BertConfig) -> Iterator[Weights]:
    """Yield all parameters; the head's projection to the vocabulary is the token embedding."""
    width = config.hidden_size
    yield Weights("token_embedding", (config.vocabulary_size, width))
    yield Weights("position_embeddings", (config.first_position + config.positions, width))
    yield Weights("position_embeddings", (config.type_vocabulary_size, width))
    yield Weights("vectors", (width,), 2)
    yield from _layer_weights(config)
    yield from _head_weights(config)


def _layer_weights(config: BertConfig) -> Iterator[Weights]:
    width, inner, layers = config.hidden_size, config.intermediate_size, config.layers
    yield from _projection((width, width), config.query_key_value_bias, 3 * layers)
    yield from _projection((width, width), config.attention_projection_bias, layers)
    yield from _projection((inner, width), True, layers)
    yield from _projection((width, inner), True, layers)
    yield Weights("vectors", (width,), 4 * layers)


def _head_weights(config: BertConfig) -> Iterator[Weights]:
    width = config.hidden_size
    if config.prediction_bias:
        yield Weights("vectors", (config.vocabulary_size,))
    if config.transform_layer:
        yield from _projection((width, width), True)
        yield Weights("vectors", (width,), 2)
    if config.next_sentence:
        yield from _projection((width, width), True)
        yield from _projection((2, width), True)


def _projection(shape: tuple[int, int], bias: bool, times: int = 1) -> Iterator[Weights]:
    """Yield a weight stored (out, in), and its bias."""
    yield Weights("matrices", shape, times)
    if bias:
        yield Weights("vectors", shape[:1], times)


def bert_products(config: BertConfig, lengths: Lengths) -> Iterator[Product]:
    """Yield the products of one sequence's forward pass; the last layer computes only the positions that are read of it."""
    width, inner = config.hidden_size, config.intermediate_size
    for layer in range(1, config.layers + 1):
        rows = lengths.source if layer < config.layers else lengths.scored + config.next_sentence
        yield from attention_products(queries=rows, keys=lengths.source, width=width, inner=width, heads=config.heads)
        yield Product(rows, width, inner)
        yield Product(rows, inner, width)
    if config.transform_layer:
        yield Product(lengths.scored, width, width, recomputed=False)
    yield Product(lengths.scored, width, config.vocabulary_size, recomputed=False)
    if config.next_sentence:
        yield Product(1, width, width, recomputed=False)
        yield Product(1, width, 2, recomputed=False)
