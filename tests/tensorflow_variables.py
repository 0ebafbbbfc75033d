"""The variables of a tiny BERT in both layouts of TensorFlow, each value given by its variable's name and index.

The values are multiples of 1/16 below 2, which half precision holds exactly.
"""

import zlib

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
LAYERS, HIDDEN, INTERMEDIATE, WORDS, POSITIONS = 2, 8, 12, 18, 10


def draw(name: str, shape: tuple[int, ...]) -> Array:
    """Return the values of a variable."""
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64) * 7919 + zlib.crc32(name.encode())
    return ((numbers * 31 % 61 - 30) / 16).astype(np.float32).reshape(shape)


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), **({f"{name}/bias": (outputs,)} if bias else {})}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}/LayerNorm/gamma": (HIDDEN,), f"{name}/LayerNorm/beta": (HIDDEN,)}


def shapes(layout: str, biases: bool = True, transform: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the shape of each variable of a model.

    Args:
        layout: google or graphcore.
        biases: those within and after attention, and that of predictions.
        transform: the layer before the vocabulary.
    """
    projection = "projection" if layout == "graphcore" else "output"
    found = {
        "bert/embeddings/word_embeddings": (WORDS, HIDDEN),
        "bert/embeddings/position_embeddings": (POSITIONS, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
        **norm("bert/embeddings"),
        **linear("bert/pooler/dense", HIDDEN, HIDDEN),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    for number in range(LAYERS):
        layer = f"bert/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            found |= linear(f"{layer}/attention/self/{part}", HIDDEN, HIDDEN, biases)
        found |= linear(f"{layer}/attention/{projection}/dense", HIDDEN, HIDDEN, biases) | norm(
            f"{layer}/attention/{projection}"
        )
        found |= linear(f"{layer}/intermediate/dense", HIDDEN, INTERMEDIATE)
        found |= linear(f"{layer}/output/dense", INTERMEDIATE, HIDDEN) | norm(f"{layer}/output")
    if transform:
        found |= linear("cls/predictions/transform/dense", HIDDEN, HIDDEN) | norm("cls/predictions/transform")
    return found | ({"cls/predictions/output_bias": (WORDS,)} if biases else {})


def variables(layout: str, biases: bool = True, transform: bool = True) -> dict[str, Array]:
    """Return the variables of a model by name; the arguments are those of `shapes`."""
    return {name: draw(name, shape) for name, shape in shapes(layout, biases, transform).items()}
