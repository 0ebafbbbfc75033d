"""Comparison of the sizes in a `config.json` with the file of the weights, before a model is built from them.

The configuration decides how much memory a model takes; a few damaged digits would ask for more than any machine has. Only the
header of the file is read.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

# The limit of the safetensors library.
LONGEST_HEADER = 100_000_000
MOST_LAYERS = 10_000
# Up to here a model is built in a moment, and comparing its tensors with the file tells more than comparing sizes.
FEW_LAYERS, FEW_WEIGHTS = 1000, 1 << 24
# Rotary positions need no weights.
MOST_POSITIONS = 1 << 24
_LAYERS = re.compile("(n|num|encoder|decoder|num_hidden|num_encoder|num_decoder)_layers?|(n|num)(_local|_routed)?_experts")
_HEADS = re.compile("(n|num)_(attention_|key_value_|kv_)?heads?|(encoder|decoder)_attention_heads")
_WIDTHS = re.compile(
    "hidden_size|n_embd|d_model|dim|hidden_dim|vocab_size|intermediate_size|n_inner|d_ff|ffn_dim|embedding_size"
)
_POSITIONS = re.compile("n_positions|n_ctx|max_position_embeddings|max_seq_len")


class FileSizes(NamedTuple):
    """The contents of files of weights together."""

    tensors: int
    elements: int
    """Numbers in all tensors."""


def measure_files(paths: Iterable[Path]) -> FileSizes:
    """Return the sizes of safetensors files; a file of another kind or with too long a header is a ValueError."""
    shapes = [shape for path in paths for shape in _read_shapes(path)]
    return FileSizes(len(shapes), sum(math.prod(shape) for shape in shapes))


def _read_shapes(path: Path) -> list[list[int]]:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe without a writer would block
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        length = int.from_bytes(file.read(8), "little")
        if length > min(LONGEST_HEADER, status.st_size - 8):
            raise ValueError(f"{path.name} has {status.st_size:,} bytes and a header of {length:,}: it is damaged")
        try:
            header = json.loads(file.read(length))
            shapes = [facts["shape"] for name, facts in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path.name} has a header that is not that of safetensors") from None
    if any(not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape) for shape in shapes):
        raise ValueError(f"{path.name} has a tensor whose shape is not a list of sizes")
    return shapes


def require_fitting_model(config: Any, found: FileSizes) -> None:
    """Raise ValueError if a model of this project's needs more than the file of its weights holds."""
    layers, width = config.layers, config.hidden_size
    decoder_layers = getattr(config, "decoder_layers", None) or 0
    if layers + decoder_layers > min(MOST_LAYERS, max(found.tensors, FEW_LAYERS)):
        raise ValueError(f"config.json: {layers + decoder_layers:,} layers, but the weights have {found.tensors:,} tensors")
    inner = config.heads * getattr(config, "head_size", width // config.heads)
    wide = max(inner, getattr(config, "intermediate_size", 0)) * (layers + decoder_layers)
    rotary = getattr(config, "position_encoding", "learnt") != "learnt"
    rows = max(wide, config.vocabulary_size, 0 if rotary else getattr(config, "positions", 0))
    rows = max(rows, getattr(config, "type_vocabulary_size", 0))
    if rows * width > max(found.elements, FEW_WEIGHTS):
        raise ValueError(f"config.json: its sizes need {rows * width:,} weights and more, but the file has {found.elements:,}")


def require_fitting_keys(config: Mapping[str, Any], found: FileSizes) -> None:
    """Raise ValueError if a key of any architecture's `config.json`, or of a section in it, is impossible for the weights."""
    limits = (
        (_LAYERS, min(MOST_LAYERS, found.tensors)),
        (_HEADS, found.elements),
        (_WIDTHS, found.elements),
        (_POSITIONS, max(MOST_POSITIONS, found.elements)),
    )
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key, value in part.items():
            largest = next((largest for pattern, largest in limits if pattern.fullmatch(key)), None)
            if largest is None or value is None:
                continue
            least = 1 if _HEADS.fullmatch(key) or _WIDTHS.fullmatch(key) else 0
            if type(value) is not int or not least <= value <= largest:
                shown = f"{value!r:.40}"
                raise ValueError(f"config.json: {key} is {shown}, expected a whole number from {least} to {largest:,} here")
