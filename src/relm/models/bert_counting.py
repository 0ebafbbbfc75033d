"""Tensors and activations of a BERT or RoBERTa. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.bert_configuration import BertConfig
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


def bert_tensors(config: BertConfig, lengths: Lengths) -> Iterator[Tensors]:
    """Yield all tensors, in the order of execution; the last layer computes only the positions that are read of it."""
    width, length = config.hidden_size, lengths.source
    yield Tensors("token_embedding", (config.vocabulary_size, width), segment="token_embedding")
    for rows in (config.first_position + config.positions, config.type_vocabulary_size):
        yield Tensors("position_embeddings", (rows, width), segment="position_embedding")
    yield Tensors("vectors", (width,), 2, segment="position_embedding")
    for layer in range(config.layers):
        rows = length if layer + 1 < config.layers else _read_rows(config, lengths)
        yield from _layer_tensors(config, rows, length, f"layers.{layer}")
    for each in _head_tensors(config, lengths):
        yield each._replace(segment="head", recomputed=False)


def _layer_tensors(config: BertConfig, rows: int, length: int, segment: str) -> Iterator[Tensors]:
    width, inner = config.hidden_size, config.intermediate_size
    yield from projection(width, width, rows, config.query_key_value_bias, segment=segment)
    yield from projection(width, width, length, config.query_key_value_bias, 2, segment)
    yield attention_scores(rows, length, width)
    yield from projection(width, width, rows, config.attention_projection_bias, segment=segment)
    yield from projection(width, inner, rows, True, segment=segment)
    yield from projection(inner, width, rows, True, segment=segment)
    yield Tensors("vectors", (width,), 4, segment=segment)


def _head_tensors(config: BertConfig, lengths: Lengths) -> Iterator[Tensors]:
    width, scored = config.hidden_size, lengths.scored
    if config.head == "spans":
        yield from projection(width, 2, lengths.source, True)
        return
    if config.head == "classes":
        yield from projection(width, width, 1, True)
        yield from projection(width, config.labels, 1, True)
        return
    if config.transform_layer:
        yield from projection(width, width, scored, True)
        yield Tensors("vectors", (width,), 2)
    yield Tensors("tied_head", (config.vocabulary_size, width), rows=scored)
    if config.prediction_bias:
        yield Tensors("vectors", (config.vocabulary_size,))
    if config.next_sentence:
        yield from projection(width, width, 1, True)
        yield from projection(width, 2, 1, True)


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
    around = sublayer_bytes(rows, width, 1, 2, how.mask if config.hidden_dropout else 0)
    feed_forward = how.element * rows * (width + 2 * wide)
    stream = FLOAT * length * width
    return Activations(
        kept=how.element * inputs * width + attention + 2 * around + feed_forward,
        temporary=2 * stream + max(scores, 2 * how.element * rows * wide),
        inputs=stream,
    )
