"""What a forward pass keeps in memory for its backward pass, tensor by tensor, as torch keeps it.

Korthikanti et al. 2022 (arXiv 2205.05198), section 4, counts in the same way; here it is for what these models really do:
attention through `scaled_dot_product_attention`, which on a CPU keeps matrices of all pairs of places where there is dropout or
a learnt number for their distance, and under autocast a residual stream in float32. All sizes are in bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from relm.models.bert_configuration import BertConfig
from relm.models.gpt2 import Gpt2Config
from relm.models.t5_configuration import T5Config
from relm.recipes.recipe import Phase, Run
from relm.training.architecture import Config
from relm.training.arithmetic import Lengths, lengths, parameter_shapes

FLOAT = 4
Tensors = list[int]
"""Bytes of each."""


class Activations(NamedTuple):
    """Of one micro-batch."""

    layers: Tensors
    """What all layers keep; with activation checkpointing, what goes into each, and everything of one."""
    rest: Tensors
    """What embeddings, the last normalisation and the head keep, the logarithms of probabilities last."""
    casts: Tensors
    """Weights in half precision, which autocast makes once a forward pass."""
    of_head: Tensors
    """What comes and goes when the backward pass begins: the gradients of the logarithms and of the logits."""
    of_layer: Tensors
    """What comes and goes in a layer's backward pass, at least: the gradients of its two widest matrices."""

    @property
    def kept(self) -> Tensors:
        """What there is between the passes."""
        return [*self.layers, *self.rest, *self.casts]


class _Sizes(NamedTuple):
    """Bytes of a number, by what it is."""

    half: int
    """Of what autocast computes: inputs and outputs of projections."""
    dropped: int
    """Of a dropout's mask on these; 0: no dropout."""
    dropped_stream: int
    """Of a dropout's mask on the residual stream."""
    pairs: int
    """How many matrices of all pairs of places attention keeps; 0: its kernel keeps none."""
    trained_pairs: int
    """The same where a number for each distance is learnt."""


class _Kept(NamedTuple):
    """Of one sequence."""

    layers: list[Tensors]
    inputs: Tensors
    """What goes into each layer."""
    rest: Tensors
    widest: int
    """Of the largest matrix in a layer, in float32."""


def activations(config: Config, phase: Phase, run: Run, sequences: int) -> Activations:
    """What a micro-batch of so many sequences keeps for its backward pass."""
    where, sizes = lengths(config, phase), _sizes(config, phase, run)
    if isinstance(config, Gpt2Config):
        kept = _gpt2(config, where, sizes, masked=phase.causal.document_attention)
    else:
        kept = _bert(config, where, sizes) if isinstance(config, BertConfig) else _t5(config, where, sizes)
    layers = [size for layer in kept.layers for size in layer]
    if run.activation_checkpointing:
        layers = [*kept.inputs, *max(kept.layers, key=sum)]
    logits = FLOAT * where.scored * config.vocabulary_size
    return Activations(
        layers=[sequences * size for size in layers],
        rest=[sequences * size for size in (*kept.rest, logits)],
        casts=[] if phase.precision == "float32" else [sizes.half * rows * columns for rows, columns in _cast(config)],
        of_head=[sequences * logits] * 2,
        of_layer=[sequences * kept.widest] * 2,
    )


def _sizes(config: Config, phase: Phase, run: Run) -> _Sizes:
    """Masks of dropout have the type of what they multiply on a CPU, and a byte for each number elsewhere."""
    half = FLOAT if phase.precision == "float32" else 2
    dropout = config.hidden_dropout if isinstance(config, BertConfig) else config.dropout
    in_attention = config.attention_dropout if isinstance(config, BertConfig) else config.dropout
    if run.device != "cpu":
        return _Sizes(half, int(dropout > 0), int(dropout > 0), 0, 0)
    # The weights after softmax, and with dropout the mask and their product: in float32, whatever the precision.
    pairs = 3 if in_attention else 0
    return _Sizes(half, half if dropout else 0, FLOAT if dropout else 0, pairs, pairs or 1)


def _cast(config: Config) -> Iterator[tuple[int, int]]:
    """Shapes of the weights that meet a product of matrices: all but embeddings, and a token embedding that is the head."""
    untied = isinstance(config, T5Config) and not config.tied_head
    others = {
        "wpe",
        "position_embeddings",
        "token_type_embeddings",
        "relative_attention_bias",
        *(("shared",) if untied else ()),
    }
    for name, shape in parameter_shapes(config).items():
        if len(shape) == 2 and name.split(".")[-2] not in others:
            yield shape[0], shape[1]


def _attention(queries: int, keys: int, inner: int, heads: int, sizes: _Sizes, pairs: int) -> Tensors:
    """What comes out; query, key and value; the logarithm of each softmax's sum, or matrices of all pairs."""
    size = FLOAT if pairs else sizes.half
    projected = [size * inner * queries, size * inner * keys, size * inner * keys]
    rest = [FLOAT * heads * queries * keys] * pairs if pairs else [FLOAT * heads * queries]
    return [sizes.half * queries * inner, *projected, *rest]


def _normalised(places: int, width: int) -> Tensors:
    """What a layer normalisation keeps: its input, mean and deviation."""
    return [FLOAT * places * width, FLOAT * places, FLOAT * places]


def _gpt2(config: Gpt2Config, where: Lengths, sizes: _Sizes, masked: bool) -> _Kept:
    length, width = where.source, config.hidden_size
    # In both sublayers: what is normalised, what comes of it, and the mask on what is added to the stream.
    sublayer = [*_normalised(length, width), sizes.half * length * width, sizes.dropped * length * width]
    layer = [*sublayer, *sublayer, *[sizes.half * length * 4 * width] * 2]
    layer += _attention(length, length, width, config.heads, sizes, sizes.pairs)
    if masked and not sizes.pairs:
        layer.append(sizes.half * length * length)
    rest = [sizes.dropped_stream * length * width, *_normalised(length, width), sizes.half * length * width]
    inputs = [FLOAT * length * width] * config.layers
    return _Kept([layer] * config.layers, inputs, rest, _widest(length, length, 4 * width, config.heads, sizes.pairs))


def _bert(config: BertConfig, where: Lengths, sizes: _Sizes) -> _Kept:
    length, width = where.source, config.hidden_size
    layers = [_bert_layer(config, length, length, sizes)] * (config.layers - 1)
    layers.append(_bert_layer(config, length, where.read, sizes, last=True))
    rest = [*_normalised(length, width), sizes.dropped_stream * length * width, sizes.half * where.scored * width]
    if config.transform_layer:
        rest += [*[sizes.half * where.scored * width] * 3, FLOAT * where.scored, FLOAT * where.scored]
    inputs = [FLOAT * length * width] * config.layers
    return _Kept(layers, inputs, rest, _widest(length, length, config.intermediate_size, config.heads, sizes.pairs))


def _bert_layer(config: BertConfig, length: int, rows: int, sizes: _Sizes, last: bool = False) -> Tensors:
    """The last layer gathers its `rows` of `length`, which keeps what it gathers from.

    In half precision each of three projections casts its input anew.
    """
    width, full = config.hidden_size, sizes.half == FLOAT
    inputs = [sizes.half * length * width] * (1 if full else 3)
    if last:
        inputs = [FLOAT * length * width, sizes.half * rows * width] + [sizes.half * length * width] * (0 if full else 2)
    # In both sublayers: the mask, and what is normalised; between them what comes of it.
    sublayer = [sizes.dropped * rows * width, *_normalised(rows, width)]
    wide = [sizes.half * rows * config.intermediate_size] * 2
    attention = _attention(rows, length, width, config.heads, sizes, sizes.pairs)
    return [*inputs, *attention, *sublayer, sizes.half * rows * width, *wide, *sublayer]


def _t5(config: T5Config, where: Lengths, sizes: _Sizes) -> _Kept:
    source, target, width = where.source, where.target, config.hidden_size
    encoder = [*_t5_self(config, source, sizes), *_t5_feed_forward(config, source, sizes)]
    decoder = [*_t5_self(config, target, sizes), *_t5_cross(config, where, sizes), *_t5_feed_forward(config, target, sizes)]
    depths = config.layers, config.decoder_layers or config.layers
    # Dropout before and after each stack, and the normalisation at its end.
    rest = [
        size
        for places in (source, target)
        for size in (*[sizes.dropped_stream * places * width] * 2, *_t5_normalised(config, places))
    ]
    rest += [FLOAT * source * width if sizes.half == FLOAT else 0, sizes.half * target * width]
    inputs = [FLOAT * source * width] * depths[0] + [FLOAT * target * width] * depths[1]
    longest = max(source, target)
    widest = _widest(longest, longest, config.intermediate_size, config.heads, sizes.trained_pairs)
    return _Kept([encoder] * depths[0] + [decoder] * depths[1], inputs, rest, widest)


def _t5_normalised(config: T5Config, places: int) -> Tensors:
    """What is normalised, its inverse root, and their product."""
    return [FLOAT * places * config.hidden_size, FLOAT * places, FLOAT * places * config.hidden_size]


def _t5_read(config: T5Config, places: int, sizes: _Sizes, readers: int) -> Tensors:
    """A normalisation, and what comes of it: in half precision for each projection that reads it."""
    outputs = 1 if sizes.half == FLOAT else readers
    return [*_t5_normalised(config, places), *[sizes.half * places * config.hidden_size] * outputs]


def _t5_self(config: T5Config, places: int, sizes: _Sizes) -> Tensors:
    inner = config.heads * config.head_size
    attention = _attention(places, places, inner, config.heads, sizes, sizes.trained_pairs)
    return [*_t5_read(config, places, sizes, 3), *attention, sizes.dropped * places * config.hidden_size]


def _t5_cross(config: T5Config, where: Lengths, sizes: _Sizes) -> Tensors:
    inner = config.heads * config.head_size
    source = [] if sizes.half == FLOAT else [sizes.half * where.source * config.hidden_size] * 2
    attention = _attention(where.target, where.source, inner, config.heads, sizes, sizes.pairs)
    mask = sizes.dropped * where.target * config.hidden_size
    return [*_t5_read(config, where.target, sizes, 1), *source, *attention, mask]


def _t5_feed_forward(config: T5Config, places: int, sizes: _Sizes) -> Tensors:
    gated = config.feed_forward == "gated_gelu"
    # Gated: both projections and the GELU of one; a ReLU's own result. Then what the last projection reads, and its mask.
    kept = [sizes.half] * 3 if gated else [sizes.half] * (sizes.dropped > 0)
    wide = [size * places * config.intermediate_size for size in (*kept, sizes.half, sizes.dropped)]
    return [*_t5_read(config, places, sizes, 2 if gated else 1), *wide, sizes.dropped * places * config.hidden_size]


def _widest(queries: int, keys: int, inner: int, heads: int, pairs: int) -> int:
    """Between the projections, or attention's where it is computed whole."""
    return FLOAT * max(queries * inner, heads * queries * keys if pairs else 0)
