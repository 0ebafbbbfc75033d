"""Weights in a Hugging Face folder, compared strictly with the model when read, and complete for `transformers` when written.

A parameter that only `transformers` requires, such as a bias, is zero in the file, which computes the same function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WEIGHTS = "model.safetensors"
# Faults that an error message names; it counts the others.
_NAMED_FAULTS = 5


def read_weights(
    folder: Path,
    expected: Mapping[str, Tensor],
    own_name: Callable[[str], str | None],
    copies: Mapping[str, str],
    zeros: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the parameters in a folder's `model.safetensors`, in float32, under the module's names; nothing is executed.

    `expected` has the module's names and shapes. `own_name` returns the module's name for a name in the file, or None for a
    tensor that the module ignores. The file may also hold `copies`, each equal to the parameter that it is tied to, and
    `zeros`, which the module lacks and which must be zero.
    """
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    found: dict[str, Tensor] = {}
    for published, tensor in load_file(str(path)).items():
        name = own_name(published)
        if name is not None:
            found[name] = tensor.float()
    faults = [
        f"{copy} differs from {name}, to which it is tied here"
        for copy, name in copies.items()
        if copy in found and name in found and not torch.equal(found[copy], found[name])
    ]
    faults += [f"{name} is not zero, but this model has none" for name in zeros if name in found and bool(found[name].any())]
    kept = {name: tensor for name, tensor in found.items() if name not in copies and name not in zeros}
    faults += _misfits(kept, expected)
    if faults:
        more = f"; and {len(faults) - _NAMED_FAULTS} more" if len(faults) > _NAMED_FAULTS else ""
        raise ValueError(f"{path}: {'; '.join(faults[:_NAMED_FAULTS])}{more}")
    return kept


def list_tensors(folder: Path) -> list[str]:
    """Return the names of the tensors in a folder's `model.safetensors`."""
    from safetensors import safe_open

    with safe_open(str(folder / WEIGHTS), framework="pt") as file:
        return list(file.keys())


def _misfits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    faults = [f"{name} is missing" for name in expected if name not in found]
    faults += [f"{name} is unknown" for name in found if name not in expected]
    return faults + [
        f"{name} has shape {tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]


def write_folder(
    folder: Path, config: Mapping[str, Any], tokens: Mapping[str, int], weights: Mapping[str, Tensor], generates: bool
) -> None:
    """Write `config.json` and `model.safetensors` (float32) into an existing folder.

    `tokens` are ids of special tokens, such as `bos_token_id`, which go into `generation_config.json` as well if the model
    generates text.
    """
    from safetensors.torch import save_file

    # For absent keys `transformers` has defaults, GPT-2's token 50256 or Llama's token 2, which would end a text.
    absent = {key: None for key in ("bos_token_id", "eos_token_id") if generates and key not in config}
    _write_json(folder / "config.json", {**config, **absent, **tokens})
    if generates:
        _write_json(folder / "generation_config.json", tokens)
    published = {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()}
    save_file(published, str(folder / WEIGHTS), metadata={"format": "pt"})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
