"""What a model has to compute: its parameters by kind, and the floating-point operations of its matrix products.

A multiplication with an addition counts as two operations. Counted are the products that are really made: the head's at scored
places alone, a BERT's last layer at places that are read, a T5's decoder over its own length. Normalisation, activations,
softmax and the optimizer, whose operations grow with the width and not with its square, are left out, as in the appendices
that utilisation is usually computed by: Narayanan et al. 2021 (arXiv 2104.04473), appendix A, and Chowdhery et al. 2022 (PaLM,
arXiv 2204.02311), appendix B.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from relm.examples.generated import masked_places
from relm.examples.span_corruption import fitting_shape
from relm.models.bert_configuration import BertConfig
from relm.models.gpt2 import Gpt2Config
from relm.models.t5_configuration import T5Config
from relm.recipes.recipe import Phase, Run
from relm.training.architecture import Config, unset_model

# The gradient of a product is two products of its size: by its input, and by its weight.
BACKWARD = 2
_TOKENS = ("wte.weight", "word_embeddings.weight", "shared.weight")
_PLACES = ("wpe.weight", "position_embeddings.weight", "token_type_embeddings.weight", "relative_attention_bias.weight")


class Parameters(NamedTuple):
    """How many numbers of each kind are learnt; what is tied counts once."""

    token_embedding: int
    """Of every token a vector; with a tied head, the projection to the vocabulary as well."""
    place_embeddings: int
    """Positions, segments, or numbers for distances."""
    matrices: int
    """In layers, and in heads before the vocabulary."""
    vectors: int
    """Biases and normalisation."""
    head: int
    """A projection to the vocabulary that is not tied."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


@functools.cache
def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each parameter; nothing of their size is allocated."""
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in unset_model(config).named_parameters()}


def parameters(config: Config) -> Parameters:
    """How many parameters of each kind a model has."""
    kinds = dict.fromkeys(Parameters._fields, 0)
    for name, shape in parameter_shapes(config).items():
        kinds[_kind(name, shape)] += torch.Size(shape).numel()
    return Parameters(**kinds)


def _kind(name: str, shape: tuple[int, ...]) -> str:
    if name.endswith(_TOKENS):
        return "token_embedding"
    if name.endswith(_PLACES):
        return "place_embeddings"
    if len(shape) == 1:
        return "vectors"
    return "head" if name == "lm_head.weight" else "matrices"


class Lengths(NamedTuple):
    """How many places of a sequence pass through the parts of a model."""

    source: int
    """Of the encoder, or of a model that has no other part."""
    target: int
    """Of a decoder that reads a source; 0 where there is none."""
    read: int
    """Of the last layer's output: all of them, or those that a BERT is scored at and the first for sentence pairs."""
    scored: int
    """For which the vocabulary's logits are computed, unused ones included: shapes are static."""


def lengths(config: Config, phase: Phase) -> Lengths:
    """The lengths of a phase's sequences, padding included."""
    length = phase.sequence_length
    if isinstance(config, T5Config):
        if phase.objective == "span_corruption":
            target = fitting_shape(length, phase.span_corruption).target_length
        else:
            target = phase.seq2seq.target_length or length
        return Lengths(length, target, target, target)
    if isinstance(config, BertConfig):
        places = masked_places(phase)
        return Lengths(length, 0, places + config.next_sentence, places)
    return Lengths(length, 0, length, length)


class Product(NamedTuple):
    """Equal products of matrices (rows, inner) and (inner, columns), in one forward pass of one sequence."""

    part: str
    """layers or head; only what is in layers is computed again where activations are not kept."""
    rows: int
    inner: int
    columns: int
    times: int = 1
    last_of_its_layer: bool = False
    """Whether nothing after it in its layer multiplies or normalises, see `recomputed`."""

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.times * self.rows * self.inner * self.columns


def products(config: Config, phase: Phase) -> list[Product]:
    """All matrix products of one sequence's forward pass, attention's scores and values included."""
    where = lengths(config, phase)
    if isinstance(config, Gpt2Config):
        return list(_gpt2(config, where))
    return list(_bert(config, where) if isinstance(config, BertConfig) else _t5(config, where))


def _attention(queries: int, keys: int, width: int, inner: int, heads: int) -> Iterator[Product]:
    """A sublayer of `queries` places that see `keys`, its four projections included.

    Scores of places that a causal mask hides count: kernels differ in whether they compute them, published figures count them.
    """
    yield Product("layers", queries, width, inner)
    yield Product("layers", keys, width, inner, times=2)
    yield Product("layers", queries, inner // heads, keys, times=heads)
    yield Product("layers", queries, keys, inner // heads, times=heads)
    yield Product("layers", queries, inner, width)


def _gpt2(config: Gpt2Config, where: Lengths) -> Iterator[Product]:
    length, width = where.source, config.hidden_size
    for _ in range(config.layers):
        yield from _attention(length, length, width, width, config.heads)
        yield Product("layers", length, width, 4 * width)
        yield Product("layers", length, 4 * width, width, last_of_its_layer=True)
    yield Product("head", where.scored, width, config.vocabulary_size)


def _bert(config: BertConfig, where: Lengths) -> Iterator[Product]:
    width, inner = config.hidden_size, config.intermediate_size
    for layer in range(1, config.layers + 1):
        rows = where.source if layer < config.layers else where.read
        yield from _attention(rows, where.source, width, width, config.heads)
        yield Product("layers", rows, width, inner)
        yield Product("layers", rows, inner, width)
    if config.transform_layer:
        yield Product("head", where.scored, width, width)
    yield Product("head", where.scored, width, config.vocabulary_size)
    if config.next_sentence:
        yield Product("head", 1, width, width)
        yield Product("head", 1, width, 2)


def _t5(config: T5Config, where: Lengths) -> Iterator[Product]:
    width, inner, heads = config.hidden_size, config.heads * config.head_size, config.heads
    for _ in range(config.layers):
        yield from _attention(where.source, where.source, width, inner, heads)
        yield from _t5_feed_forward(config, where.source)
    for _ in range(config.decoder_layers or config.layers):
        yield from _attention(where.target, where.target, width, inner, heads)
        yield from _attention(where.target, where.source, width, inner, heads)
        yield from _t5_feed_forward(config, where.target)
    yield Product("head", where.scored, width, config.vocabulary_size)


def _t5_feed_forward(config: T5Config, rows: int) -> Iterator[Product]:
    projections = 2 if config.feed_forward == "gated_gelu" else 1
    yield Product("layers", rows, config.hidden_size, config.intermediate_size, times=projections)
    yield Product("layers", rows, config.intermediate_size, config.hidden_size, last_of_its_layer=True)


class Operations(NamedTuple):
    """Floating-point operations of one optimizer step: of a global batch."""

    forward: int
    backward: int
    recomputed: int
    """Of layers in the backward pass, where activations are not kept: the hardware's work, and not the model's."""

    @property
    def model(self) -> int:
        """What the model needs, however it is computed: by this, utilisation is counted (PaLM, appendix B)."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """What is computed."""
        return self.model + self.recomputed


def operations(config: Config, phase: Phase, run: Run) -> Operations:
    """Operations of one optimizer step over all devices."""
    made = products(config, phase)
    forward = phase.global_batch_size * sum(product.operations for product in made)
    again = phase.global_batch_size * sum(product.operations for product in made if recomputed(config, product))
    return Operations(forward, BACKWARD * forward, again if run.activation_checkpointing else 0)


def recomputed(config: Config, product: Product) -> bool:
    """Whether activation checkpointing makes a product again: torch stops when it has what the backward pass asks for.

    The last projection of a GPT-2's and a T5's layer is asked for by its dropout alone.
    """
    dropout = config.hidden_dropout if isinstance(config, BertConfig) else config.dropout
    return product.part == "layers" and not (product.last_of_its_layer and not dropout)


def model_flops(config: Config, phase: Phase) -> float:
    """Floating-point operations of one optimizer step, for utilisation: forward and backward over the global batch.

    With B sequences a batch, it is ``3 * B * sum(2 * rows * inner * columns)`` over `products`: 1 for the forward pass and 2
    for the backward pass, nothing for what is computed again. For a GPT-2 of N parameters without positions, biases and
    normalisation, with n layers, width h and sequences of L tokens, that is ``B * L * (6 * N + 12 * n * h * L)``, which is
    Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B, with h for its heads times their size; and
    ``72 * B * L * n * h ** 2 * (1 + L / (6 * h) + V / (12 * n * h))``, Narayanan et al. 2021 (arXiv 2104.04473), appendix A,
    without its recomputation. The whole matrix of scores counts, the half that a causal mask hides too, as in both.
    """
    return float((1 + BACKWARD) * phase.global_batch_size * sum(product.operations for product in products(config, phase)))
