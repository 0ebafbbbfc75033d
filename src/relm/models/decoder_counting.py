"""Parameters, matrix products and activations of the decoder, by its switches. Imports no torch."""

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
from relm.models.decoder_configuration import DecoderConfig


def decoder_weights(config: DecoderConfig) -> Iterator[Weights]:
    """Yield all parameters; a tied head is the token embedding."""
    for _, weights in decoder_segment_weights(config):
        yield weights


def decoder_segment_weights(config: DecoderConfig) -> Iterator[tuple[str, Weights]]:
    """Yield the name of a segment (`relm.models.segments`) and parameters in it, in the order of execution.

    A tied head is the token embedding, and counts there; the last normalisation counts with the last layer.
    """
    width, last = config.hidden_size, f"layers.{config.layers - 1}"
    # A normalisation's scale, and in some its shift.
    vectors = 2 if config.normalisation == "layer_norm" and config.biases else 1
    yield "token_embedding", Weights("token_embedding", (config.vocabulary_size, width))
    if config.position_encoding == "learnt":
        yield "position_embedding", Weights("position_embeddings", (config.positions, width))
    for layer in range(config.layers):
        for shape in _matrices(config):
            yield f"layers.{layer}", Weights("matrices", shape)
            if config.biases:
                yield f"layers.{layer}", Weights("vectors", shape[1:])
        yield f"layers.{layer}", Weights("vectors", (width,), 2 * vectors)
    yield last, Weights("vectors", (width,), vectors)
    if not config.tied_head:
        yield "head", Weights("head", (config.vocabulary_size, width))


def _matrices(config: DecoderConfig) -> list[tuple[int, int]]:
    """Return the shapes of a layer's matrices, (in, out): two of attention, and those of the feed-forward sublayer."""
    width, inner = config.hidden_size, config.intermediate_size
    into = [(width, inner)] * _projections_into(config)
    return [(width, width + 2 * _shared(config)), (width, width), *into, (inner, width)]


def _projections_into(config: DecoderConfig) -> int:
    """Return the count of projections from the residual stream into the feed-forward sublayer."""
    return 2 if config.feed_forward == "swiglu" else 1


def _shared(config: DecoderConfig) -> int:
    """Return the width of all keys, or of all values, together."""
    return config.hidden_size // config.heads * config.key_value_heads


def decoder_products(config: DecoderConfig, lengths: Lengths) -> Iterator[Product]:
    """Yield the products of one sequence's forward pass."""
    length, width, inner = lengths.source, config.hidden_size, config.intermediate_size
    for _ in range(config.layers):
        yield from attention_products(
            queries=length, keys=length, width=width, inner=width, heads=config.heads, shared=_shared(config)
        )
        yield Product(length, width, inner, times=_projections_into(config))
        yield Product(length, inner, width, recomputed=config.dropout > 0)
    yield Product(lengths.scored, width, config.vocabulary_size, recomputed=False)


def decoder_activations(config: DecoderConfig, lengths: Lengths, how: Computing) -> Iterator[Activations]:
    """Yield the activations of one sequence: those of the layers, then of embeddings and head."""
    length, width, dropout = lengths.source, config.hidden_size, config.dropout > 0
    stream, computed = FLOAT * length * width, how.element * length * width
    inner = how.element * length * config.intermediate_size
    masks = how.mask * length * width if dropout else 0
    attention, scores = attention_bytes(how, length, length, width, config.heads, dropout)
    # Of booleans, kept once; torch's fused attention makes of it one of numbers in each layer.
    document_mask = length * length if lengths.document_mask else 0
    mask_copies = how.element * document_mask if how.attention == "fused" else 0
    norms = 2 * (_normalised(config, how, stream) + 2 * FLOAT * length)
    # What the feed-forward sublayer keeps between its projections, and the gradients there at one time.
    fed, gradients_fed = (4 * inner, 3 * inner) if config.feed_forward == "swiglu" else (2 * inner, 2 * inner)
    # Inputs of the projections before attention and into the feed-forward sublayer.
    inputs = (1 + (_projections_into(config) if how.copies else 1)) * computed
    yield Activations(
        kept=norms + inputs + fed + attention + 2 * masks + mask_copies,
        temporary=2 * stream + max(scores, gradients_fed),
        times=config.layers,
        inputs=stream,
    )
    logits, gradients = loss_bytes(how, lengths.scored, config.vocabulary_size)
    yield Activations(
        kept=ID * length + stream + _normalised(config, how, stream) + computed + document_mask + logits, temporary=gradients
    )


def _normalised(config: DecoderConfig, how: Computing, stream: int) -> int:
    """Return the bytes that a normalisation keeps of its input.

    Torch's own kernel keeps the input alone. That by the root mean square is plain operations, which also keep the normalised
    values, unless a compiler computes these again.
    """
    return stream if config.normalisation == "layer_norm" or how.compiled else 2 * stream
