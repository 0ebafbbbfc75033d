"""Parameters, matrix products and activations of a GPT-2. Imports no torch."""

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
from relm.models.gpt2_configuration import Gpt2Config


def gpt2_weights(config: Gpt2Config) -> Iterator[Weights]:
    """Yield all parameters; the head is the token embedding."""
    for _, weights in gpt2_segment_weights(config):
        yield weights


def gpt2_segment_weights(config: Gpt2Config) -> Iterator[tuple[str, Weights]]:
    """Yield the name of a segment (`relm.models.segments`) and parameters in it, in the order of execution.

    The head is the token embedding, and counts there; the last normalisation counts with the last layer.
    """
    width, last = config.hidden_size, f"layers.{config.layers - 1}"
    # A normalisation's scale, and with biases its shift.
    scale_and_shift = 2 if config.biases else 1
    yield "token_embedding", Weights("token_embedding", (config.vocabulary_size, width))
    yield "position_embedding", Weights("position_embeddings", (config.positions, width))
    for layer in range(config.layers):
        for shape in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
            yield f"layers.{layer}", Weights("matrices", shape)
            if config.biases:
                yield f"layers.{layer}", Weights("vectors", shape[1:])
        yield f"layers.{layer}", Weights("vectors", (width,), 2 * scale_and_shift)
    yield last, Weights("vectors", (width,), scale_and_shift)


def gpt2_products(config: Gpt2Config, lengths: Lengths) -> Iterator[Product]:
    """Yield the products of one sequence's forward pass."""
    length, width = lengths.source, config.hidden_size
    for _ in range(config.layers):
        yield from attention_products(queries=length, keys=length, width=width, inner=width, heads=config.heads)
        yield Product(length, width, 4 * width)
        yield Product(length, 4 * width, width, recomputed=config.dropout > 0)
    yield Product(lengths.scored, width, config.vocabulary_size, recomputed=False)


def gpt2_activations(config: Gpt2Config, lengths: Lengths, how: Computing) -> Iterator[Activations]:
    """Yield the activations of one sequence: those of the layers, then of embeddings and head."""
    length, width, dropout = lengths.source, config.hidden_size, config.dropout > 0
    stream, computed = FLOAT * length * width, how.element * length * width
    masks = how.mask * length * width if dropout else 0
    attention, scores = attention_bytes(how, length, length, width, config.heads, dropout)
    # Of booleans, kept once; torch's fused attention makes of it one of numbers in each layer.
    document_mask = length * length if lengths.document_mask else 0
    mask_copies = how.element * document_mask if how.attention == "fused" else 0
    # Inputs of two normalisations; inputs of the projections before attention and GELU, and of the one after it; GELU's input.
    yield Activations(
        kept=2 * (stream + 2 * FLOAT * length) + (1 + 1 + 4 + 4) * computed + attention + 2 * masks + mask_copies,
        temporary=2 * stream + max(scores, 8 * computed),
        times=config.layers,
        inputs=stream,
    )
    logits, gradients = loss_bytes(how, lengths.scored, config.vocabulary_size)
    yield Activations(kept=ID * length + 2 * stream + computed + document_mask + logits, temporary=gradients)
