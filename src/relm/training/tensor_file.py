"""Files of named tensors in the safetensors format, written one tensor at a time and hashed while they are written.

The format is that of https://github.com/huggingface/safetensors: the header's length in 8 bytes, little-endian; the header,
JSON with each tensor's type, shape and offsets, padded with spaces to a multiple of 8 bytes; the tensors. They are sorted by
type, wide ones first, then by name, so that each begins at a multiple of its elements' width. The bytes depend only on the
tensors and are those that the safetensors library writes. That library needs all tensors in main memory at once, and rejects
XLA tensors, tensors that are not contiguous and tensors that share memory.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from relm.errors import RelmError
from relm.training.kill_points import kill_point

# Types in the order in which the library sorts them.
TYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = {dtype: rank for rank, dtype in enumerate(TYPES)}
_DTYPES = {name: dtype for dtype, name in TYPES.items()}


class Damaged(RelmError):
    """The error for a file that changed since it was written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a file, sync it to the disk, and return its sha256.

    At most one tensor is copied to main memory at a time.
    """
    digest = hashlib.sha256()
    names = sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype], name))
    with open(path, "wb") as file:
        _write_hashed(_header({name: tensors[name] for name in names}), file, digest)
        for name in names:
            content = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            _write_hashed(content, file, digest)
            kill_point("checkpoint-tensor")
        os.fsync(file.fileno())
    return digest.hexdigest()


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """Return the tensors of a file that `write_tensors` wrote, views of one buffer; the sha256 is checked before parsing."""
    try:
        with open(path, "rb") as file:
            content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
            file.readinto(content.data)
    except FileNotFoundError:
        raise Damaged(f"{path}: damaged: the file is missing") from None
    except MemoryError as error:  # does not mean that the file is damaged
        raise OSError(errno.ENOMEM, "there is not enough memory for its tensors", str(path)) from error
    if hashlib.sha256(content.data).hexdigest() != sha256:
        raise Damaged(f"{path}: damaged: its sha256 is not the one in state.json")
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    data = torch.from_numpy(content[begin:])
    return {name: _tensor(data, facts) for name, facts in json.loads(content[8:begin].tobytes()).items()}


def _tensor(data: Tensor, facts: Mapping[str, Any]) -> Tensor:
    """Return the tensor that the header describes with these facts."""
    start, end = facts["data_offsets"]
    return data[start:end].view(_DTYPES[facts["dtype"]]).reshape(facts["shape"])


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the header with its length in front."""
    facts, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        facts[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_hashed(content: bytes | memoryview, file: IO[bytes], digest: Any) -> None:
    """Write bytes, flush them to the system, and hash them."""
    file.write(content)
    file.flush()
    digest.update(content)
