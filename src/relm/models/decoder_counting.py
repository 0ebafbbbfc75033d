"""Tensors and activations of the decoder, by its switches. Imports no torch."""

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
    sublayer_bytes,
)
from relm.models.decoder_configuration import DecoderConfig


def decoder_tensors(config: DecoderConfig, lengths: Lengths) -> Iterator[Tensors]:
    """Yield all tensors, in the order of execution; the last normalisation counts with the last layer."""
    length, width, inner = lengths.source, config.hidden_size, config.intermediate_size
    # A normalisation's scale, and in some its shift.
    vectors = 2 if config.normalisation == "layer_norm" and config.biases else 1
    keys_and_values = 2 * (width // config.heads) * config.key_value_heads
    yield Tensors("token_embedding", (config.vocabulary_size, width), segment="token_embedding")
    if config.position_encoding == "learnt":
        yield Tensors("position_embeddings", (config.positions, width), segment="position_embedding")
    if config.embedding_norm:
        yield Tensors("vectors", (width,), vectors, segment="position_embedding")
    for layer in range(config.layers):
        segment = f"layers.{layer}"
        into = [(width, inner, True)] * _projections_into(config)
        shapes = [(width, width + keys_and_values, True), (width, width, True), *into, (inner, width, config.dropout > 0)]
        for *shape, recomputed in shapes:  # (in, out)
            yield Tensors("matrices", tuple(shape), 1, length, segment, recomputed)
            if config.biases:
                yield Tensors("vectors", (shape[1],), segment=segment)
        yield attention_scores(length, length, width)
        yield Tensors("vectors", (width,), 2 * vectors, segment=segment)
    yield Tensors("vectors", (width,), vectors, segment=f"layers.{config.layers - 1}")
    kind = "tied_head" if config.tied_head else "head"
    yield Tensors(kind, (config.vocabulary_size, width), 1, lengths.scored, "head", recomputed=False)
    if config.head_bias:
        yield Tensors("vectors", (config.vocabulary_size,), segment="head")


def _projections_into(config: DecoderConfig) -> int:
    """Return the count of projections from the residual stream into the feed-forward sublayer."""
    return 2 if config.feed_forward == "swiglu" else 1


def decoder_activations(config: DecoderConfig, lengths: Lengths, how: Computing) -> Iterator[Activations]:
    """Yield the activations of one sequence: those of the layers, then of embeddings and head."""
    length, width, dropout = lengths.source, config.hidden_size, config.dropout > 0
    stream, computed = FLOAT * length * width, how.element * length * width
    inner = how.element * length * config.intermediate_size
    # Torch's kernel for layer normalisation keeps only its input. Normalisation by the root mean square is plain operations,
    # which also keep the normalised values unless a compiler recomputes them.
    kept = 1 if config.normalisation == "layer_norm" or how.compiled else 2
    around = sublayer_bytes(length, width, kept, 2, how.mask if dropout else 0)
    attention, scores = attention_bytes(how, length, length, width, config.heads, dropout)
    # The mask is boolean and kept once; torch's fused attention turns it into numbers in each layer.
    document_mask = length * length if lengths.document_mask else 0
    mask_copies = how.element * document_mask if how.attention == "fused" else 0
    # What the feed-forward sublayer keeps between its projections, and the gradients there at one time.
    fed, gradients_fed = (4 * inner, 3 * inner) if config.feed_forward == "swiglu" else (2 * inner, 2 * inner)
    # Inputs of the projections before attention and into the feed-forward sublayer.
    inputs = (1 + (_projections_into(config) if how.copies else 1)) * computed
    yield Activations(
        kept=2 * around + inputs + fed + attention + mask_copies,
        temporary=2 * stream + max(scores, gradients_fed),
        times=config.layers,
        inputs=stream,
    )
    logits, gradients = loss_bytes(how, lengths.scored, config.vocabulary_size)
    yield Activations(kept=ID * length + (1 + kept) * stream + computed + document_mask + logits, temporary=gradients)
