"""A trained model small enough for tests: stories260K of the real data, as a folder of `LlamaForCausalLM`."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
BEGIN = 1


def stories(shared_data: Path, folder: Path) -> Path:
    """Convert the model from the format of karpathy/llama2.c (export.py, legacy_export); return its folder."""
    source = shared_data / "models" / "stories260K" / "stories260K.bin"
    if not source.exists():
        pytest.skip("stories260K is not among the real data of ../shared/data")
    *sizes, vocabulary, positions = np.fromfile(source, "<i4", 7).tolist()
    named = dict(zip(FIELDS, sizes, strict=True))
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(**named, vocab_size=vocabulary, max_position_embeddings=positions, rms_norm_eps=1e-5,
                       tie_word_embeddings=True)
    )  # fmt: skip
    layers, heads, key_heads = model.model.layers, named["num_attention_heads"], named["num_key_value_heads"]
    numbers = torch.from_numpy(np.fromfile(source, "<f4", offset=28))

    def fill(weight: torch.Tensor, interleaved_heads: int = 0) -> None:
        nonlocal numbers
        values, numbers = numbers[: weight.numel()].view_as(weight), numbers[weight.numel() :]
        if interleaved_heads:  # rotated pairs stand side by side there, half a head apart here
            values = values.view(interleaved_heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        weight.data.copy_(values)

    fill(model.model.embed_tokens.weight)
    for part, turned in (
        ("input_layernorm", 0), ("self_attn.q_proj", heads), ("self_attn.k_proj", key_heads), ("self_attn.v_proj", 0),
        ("self_attn.o_proj", 0), ("post_attention_layernorm", 0),
        ("mlp.gate_proj", 0), ("mlp.down_proj", 0), ("mlp.up_proj", 0),
    ):  # fmt: skip
        for layer in layers:
            fill(layer.get_submodule(part).weight, turned)
    fill(model.model.norm.weight)
    model.save_pretrained(folder)
    return folder


def pieces(shared_data: Path) -> list[bytes]:
    """Return the text of each id of llama2.c's `tok512.bin`: the longest length, then score, length and bytes of each."""
    content, found, position = (shared_data / "models" / "stories260K" / "tok512.bin").read_bytes(), list[bytes](), 4
    while position < len(content):
        size = int.from_bytes(content[position + 4 : position + 8], "little")
        found.append(content[position + 8 : position + 8 + size])
        position += 8 + size
    return found
