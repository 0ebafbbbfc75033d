"""Parameters and matrix products of a GPT-2. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from relm.models.counting import Lengths, Product, Weights, attention_products
from relm.models.gpt2_configuration import Gpt2Config


def gpt2_weights(config: Gpt2Config) -> Iterator[Weights]:
    """Yield all parameters; the head is the token embedding."""
    width, layers = config.hidden_size, config.layers
    yield Weights("token_embedding", (config.vocabulary_size, width))
    yield Weights("position_embeddings", (config.positions, width))
    for shape in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
        yield Weights("matrices", shape, layers)
        if config.biases:
            yield Weights("vectors", shape[1:], layers)
    # Scales, and with biases shifts: two normalisations in each layer and one after the last.
    yield Weights("vectors", (width,), (2 * layers + 1) * (2 if config.biases else 1))


def gpt2_products(config: Gpt2Config, lengths: Lengths) -> Iterator[Product]:
    """Yield the products of one sequence's forward pass."""
    length, width = lengths.source, config.hidden_size
    for _ in range(config.layers):
        yield from attention_products(queries=length, keys=length, width=width, inner=width, heads=config.heads)
        yield Product(length, width, 4 * width)
        yield Product(length, 4 * width, width, recomputed=config.dropout > 0)
    yield Product(lengths.scored, width, config.vocabulary_size, recomputed=False)
