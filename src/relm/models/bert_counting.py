"""Parameters, matrix products and activations of a BERT or RoBERTa. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.bert_configuration import BertConfig
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


def bert_weights(config: BertConfig) -> Iterator[Weights]:
    """Yield all parameters; the head's projection to the vocabulary is the token embedding."""
    for _, weights in bert_segment_weights(config):
        yield weights


def bert_segment_weights(config: BertConfig) -> Iterator[tuple[str, Weights]]:
    """Yield the name of a segment (`relm.models.segments`) and parameters in it, in the order of execution.

    The head's projection to the vocabulary is the token embedding, and counts there.
    """
    width = config.hidden_size
    yield "token_embedding", Weights("token_embedding", (config.vocabulary_size, width))
    yield "position_embedding", Weights("position_embeddings", (config.first_position + config.positions, width))
    yield "position_embedding", Weights("position_embeddings", (config.type_vocabulary_size, width))
    yield "position_embedding", Weights("vectors", (width,), 2)
    for layer in range(config.layers):
        for weights in _layer_weights(config):
            yield f"layers.{layer}", weights
    for weights in _head_weights(config):
        yield "head", weights


def _layer_weights(config: BertConfig) -> Iterator[Weights]:
    width, inner = config.hidden_size, config.intermediate_size
    yield from _projection((width, width), config.query_key_value_bias, 3)
    yield from _projection((width, width), config.attention_projection_bias)
    yield from _projection((inner, width), True)
    yield from _projection((width, inner), True)
    yield Weights("vectors", (width,), 4)


def _head_weights(config: BertConfig) -> Iterator[Weights]:
    width = config.hidden_size
    if config.head == "spans":
        yield from _projection((2, width), True)
        return
    if config.head == "classes":
        yield from _projection((width, width), True)
        yield from _projection((config.labels, width), True)
        return
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
        rows = lengths.source if layer < config.layers else _read_rows(config, lengths)
        yield from attention_products(queries=rows, keys=lengths.source, width=width, inner=width, heads=config.heads)
        yield Product(rows, width, inner)
        yield Product(rows, inner, width)
    if config.head == "spans":
        yield Product(lengths.source, width, 2, recomputed=False)
        return
    if config.head == "classes":
        yield Product(1, width, width, recomputed=False)
        yield Product(1, width, config.labels, recomputed=False)
        return
    if config.transform_layer:
        yield Product(lengths.scored, width, width, recomputed=False)
    yield Product(lengths.scored, width, config.vocabulary_size, recomputed=False)
    if config.next_sentence:
        yield Product(1, width, width, recomputed=False)
        yield Product(1, width, 2, recomputed=False)


def _read_rows(config: BertConfig, lengths: Lengths) -> int:
    """Return the count of positions of the last layer's output that the head reads."""
    return {"spans": lengths.source, "classes": 1}.get(config.head, lengths.scored + config.next_sentence)


def bert_activations(config: BertConfig, lengths: Lengths, how: Computing) -> Iterator[Activations]:
    """Yield the activations of one sequence: those of the layers, then of embeddings and heads."""
    length, scored, width = lengths.source, lengths.scored, config.hidden_size
    yield _layer_activations(config, length, length, how)._replace(times=config.layers - 1)
    yield _layer_activations(config, _read_rows(config, lengths), length, how)
    embeddings = 2 * ID * length + 2 * FLOAT * length * width
    if config.head == "spans":  # the head's input, and two logits with their logarithms for each position
        yield Activations(kept=embeddings + how.element * length * width + 4 * FLOAT * length, temporary=2 * FLOAT * length)
        return
    if config.head == "classes":  # the first token's output, the pooler's and the classifier's inputs
        yield Activations(kept=embeddings + 4 * FLOAT * width + 4 * FLOAT * config.labels, temporary=2 * FLOAT * width)
        return
    logits, gradients = loss_bytes(how, scored, config.vocabulary_size)
    # Of the transform: its input, GELU's input, the normalisation's input and its output.
    transform = scored * width * (3 * how.element + FLOAT) if config.transform_layer else how.element * scored * width
    pooler = 4 * FLOAT * width if config.next_sentence else 0
    yield Activations(kept=embeddings + transform + pooler + logits, temporary=gradients)


def _layer_activations(config: BertConfig, rows: int, length: int, how: Computing) -> Activations:
    """Return the activations of a layer whose queries and feed-forward are computed at `rows` of `length` positions."""
    width, wide = config.hidden_size, config.intermediate_size
    gathered = rows if rows != length else 0
    inputs = rows + 2 * length if how.copies else length + gathered
    attention, scores = attention_bytes(how, rows, length, width, config.heads, config.attention_dropout > 0)
    masks = 2 * how.mask * rows * width if config.hidden_dropout else 0
    normalisations = 2 * FLOAT * rows * (width + 2)
    feed_forward = how.element * rows * (width + 2 * wide)
    stream = FLOAT * length * width
    return Activations(
        kept=how.element * inputs * width + attention + masks + normalisations + feed_forward,
        temporary=2 * stream + max(scores, 2 * how.element * rows * wide),
        inputs=stream,
    )
