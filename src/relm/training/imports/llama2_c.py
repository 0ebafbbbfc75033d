"""Convert a model of karpathy/llama2.c to a folder that `relm.models.llama.Llama.from_folder` and `transformers` read.

Its format 0 (`export.py` there, `legacy_export`) has seven 32-bit integers, then all weights in float32, each matrix (out, in).
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.limits import require_disk
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig

HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
LARGEST = 1 << 24
# llama2.c's model.py has these for all models, and its files have neither.
RMS_NORM_EPSILON, ROTARY_BASE = 1e-5, 10000.0
# Matrices of all layers in the order of the file, one after the other, and the heads whose pairs are side by side in it.
LAYERS = (
    ("input_layernorm", None),
    ("self_attn.q_proj", "heads"),
    ("self_attn.k_proj", "key_value_heads"),
    ("self_attn.v_proj", None),
    ("self_attn.o_proj", None),
    ("post_attention_layernorm", None),
    ("mlp.gate_proj", None),
    ("mlp.down_proj", None),
    ("mlp.up_proj", None),
)


def import_llama2_c(path: Path, output: Path) -> str:
    """Convert a model such as stories260K.bin to a folder that `transformers` reads (float32), and return its size in words."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; give a file such as stories260K.bin") from None
    config = read_header(content, path)
    _require_length(content, config, path)
    model = Llama(config)
    model.load_huggingface(_read_weights(content, path, model))
    _write_folder(model, output)
    shared = "" if config.key_value_heads == config.heads else f" ({config.key_value_heads} of keys and values)"
    return (
        f"{output}: a Llama of llama2.c with {model.parameter_count():,} parameters, {config.layers} layers, "
        f"{config.heads} heads{shared}, width {config.hidden_size}, {config.positions} positions, "
        f"vocabulary {config.vocabulary_size:,}"
    )


def _write_folder(model: Llama, output: Path) -> None:
    """Write the model, with a sidecar for each file; the files appear when all are written."""
    output.mkdir(parents=True, exist_ok=True)
    require_disk(output, 4 * model.parameter_count(), "model.safetensors")
    with tempfile.TemporaryDirectory(prefix=".import.", dir=output) as partial:
        model.save_folder(Path(partial), {})
        for path in sorted(Path(partial).iterdir()):
            path.chmod(0o644)
            os.replace(path, output / path.name)
            write_sidecar(output / path.name)


def read_header(content: bytes, path: Path) -> LlamaConfig:
    """Return the architecture of a model."""
    if len(content) < 4 * len(HEADER):
        raise RelmError(f"{path}: has {len(content)} bytes, expected at least the {4 * len(HEADER)} of a header")
    found = dict(zip(HEADER, np.frombuffer(content, "<i4", len(HEADER)).tolist(), strict=True))
    if strange := [name for name in HEADER if not 0 < abs(found[name]) < LARGEST or (found[name] < 0 and name != "vocab_size")]:
        raise RelmError(
            f"{path}: {strange[0]} is {found[strange[0]]} in its header, expected a whole number from 1 on: is it a model that "
            "llama2.c's export.py wrote with --version 0?"
        )
    try:
        return LlamaConfig(
            layers=found["n_layers"],
            heads=found["n_heads"],
            hidden_size=found["dim"],
            intermediate_size=found["hidden_dim"],
            positions=found["max_seq_len"],
            vocabulary_size=abs(found["vocab_size"]),
            key_value_heads=found["n_kv_heads"],
            rotary_base=ROTARY_BASE,
            tied_head=found["vocab_size"] > 0,  # the sign says so
            rms_norm_epsilon=RMS_NORM_EPSILON,
        )
    except ValueError as error:
        raise RelmError(f"{path}: its header describes no Llama: {error}") from None


def _require_length(content: bytes, config: LlamaConfig, path: Path) -> None:
    """Raise an error for a file that is not as long as its header says, before a model of that size is made."""
    width, shared = config.hidden_size, config.key_value_heads * (config.hidden_size // config.heads)
    layer = 2 * width + 2 * width * width + 2 * width * shared + 3 * width * config.intermediate_size
    embeddings = config.vocabulary_size * width * (1 if config.tied_head else 2)
    expected = 4 * (len(HEADER) + _count_angles(config) + embeddings + config.layers * layer + width)
    if len(content) != expected:
        raise RelmError(
            f"{path}: has {len(content):,} bytes, but a model with its header has {expected:,}: is it whole, and did "
            "llama2.c's export.py write it with --version 0?"
        )


def _count_angles(config: LlamaConfig) -> int:
    """Return the count of cosines and sines of all positions, which stand before a head of its own."""
    return config.positions * (config.hidden_size // config.heads)


def _read_weights(content: bytes, path: Path, model: Llama) -> dict[str, Tensor]:
    """Return the weights under the names of `LlamaForCausalLM`."""
    config = model.config
    shapes = {name: value.shape for name, value in model.huggingface_weights().items()}
    numbers = torch.from_numpy(np.frombuffer(content, "<f4", offset=4 * len(HEADER)).astype(np.float32))
    weights, start = {}, 0
    for name, interleaved_heads in _places(config):
        start += _count_angles(config) if name == "lm_head.weight" else 0
        values = numbers[start : start + shapes[name].numel()].view(shapes[name])
        start += values.numel()
        if not bool(values.isfinite().all()):
            raise RelmError(f"{path}: {name} has a number that is not finite: damaged, or another format; copy it again")
        weights[name] = values if interleaved_heads is None else separate_pairs(values, interleaved_heads)
    return weights


def _places(config: LlamaConfig) -> Iterator[tuple[str, int | None]]:
    """Yield the names of all tensors in `LlamaForCausalLM`, in the order of the file.

    Beside each is the count of heads in whose rows the two of each rotated pair are side by side; None where they are not.
    """
    yield "model.embed_tokens.weight", None
    for part, heads in LAYERS:
        for layer in range(config.layers):
            yield f"model.layers.{layer}.{part}.weight", None if heads is None else getattr(config, heads)
    yield "model.norm.weight", None
    if not config.tied_head:
        yield "lm_head.weight", None


def separate_pairs(weight: Tensor, heads: int) -> Tensor:
    """Return the rows of queries or keys with those of each rotated pair half a head apart, where they were side by side.

    >>> separate_pairs(torch.arange(8)[:, None], heads=2)[:, 0].tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
