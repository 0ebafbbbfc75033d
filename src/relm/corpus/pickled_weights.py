"""Convert weights that were only released as `pytorch_model.bin` to `model.safetensors`.

Such a file is a pickle, which can hold any program. torch's reader with `weights_only` builds tensors from it, rejects
everything else, and runs no code of it.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file, write_json, write_sidecar
from relm.errors import RelmError
from relm.limits import require_disk


def convert_weights(pickled: Path, configuration: Mapping[str, Any], output: Path) -> str:
    """Write `output` and a `config.json` in its folder, with their sidecars, and return a sentence about them.

    `pickled` is a `pytorch_model.bin` whose hash was checked when it was downloaded. Of tensors that share their memory (tied
    weights) only the first in the file is kept.

    Raises RelmError if the file is damaged or holds anything but tensors by name, or the disk is too small.
    """
    from safetensors.torch import save

    weights = _drop_copies(_read_tensors(pickled), pickled)
    size = sum(tensor.nbytes for tensor in weights.values())
    require_disk(output.parent, size, output.name)
    with atomic_file(output) as file:
        file.write(save(weights, metadata={"format": "pt"}))
    write_sidecar(output)
    beside = output.with_name("config.json")
    write_json(beside, configuration)
    write_sidecar(beside)
    return f"{output.name}: {len(weights):,} tensors, {size:,} bytes from {pickled.name}"


def _read_tensors(pickled: Path) -> dict[str, Any]:
    """Return name -> tensor, memory-mapped where the file's form allows it."""
    import torch

    try:
        found = torch.load(pickled, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(pickled))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, IndexError) as error:
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RelmError(
            f"{pickled}: expected only tensors: {what}; use another release of these weights, one with a model.safetensors"
        ) from None
    if not isinstance(found, dict) or not found or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise RelmError(f"{pickled}: expected tensors by name, found {type(found).__name__}; give the weights of a model")
    return {str(name): tensor for name, tensor in found.items()}


def _drop_copies(tensors: Mapping[str, Any], pickled: Path) -> dict[str, Any]:
    seen: dict[tuple[Any, ...], str] = {}
    kept: dict[str, Any] = {}
    size, most = 0, pickled.stat().st_size
    for name, tensor in tensors.items():
        if tensor.dtype.is_complex or tensor.is_sparse:
            raise RelmError(f"{pickled}: {name}: expected a plain array of numbers, found {tensor.dtype} and {tensor.layout}")
        same = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if seen.setdefault(same, name) == name:
            # The file has bytes for each element, unless tensors are expanded (stride 0) or overlap.
            if (size := size + tensor.nbytes) > most:
                raise RelmError(
                    f"{pickled}: its tensors up to {name} have {size:,} bytes, but the file has {most:,}: they repeat its "
                    "numbers. Use another release of these weights, one with a model.safetensors"
                )
            whole = tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.is_contiguous()
            kept[name] = tensor if whole else tensor.contiguous().clone()
    return kept
