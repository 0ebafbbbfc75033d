"""Files of named tensors in the safetensors format, written and read one tensor at a time and hashed on the way.

The format is that of https://github.com/huggingface/safetensors: the header's length in 8 bytes, little-endian; the header,
JSON with each tensor's type, shape and place, filled up with spaces to a multiple of 8 bytes; the tensors. They are sorted by
type, wide ones first, then by name, so that each begins at a multiple of its numbers' width. The bytes follow from the tensors
alone: they are those that the safetensors library writes.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from relm.errors import RelmError
from relm.training.kill_points import kill_point

# In the order in which the library sorts them.
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
_ORDER = {dtype: place for place, dtype in enumerate(TYPES)}
_DTYPES = {name: dtype for dtype, name in TYPES.items()}


class Damaged(RelmError):
    """A file is not what was written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a file, of which the disk then holds every byte; its sha256.

    At most one tensor is copied to main memory at a time.

    Raises:
        OSError: it cannot be written.
    """
    digest = hashlib.sha256()
    names = sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype], name))
    with open(path, "wb") as file:
        _put(_header({name: tensors[name] for name in names}), file, digest)
        for name in names:
            _put(_bytes_of(tensors[name].detach().cpu().contiguous()), file, digest)
            kill_point("checkpoint-tensor")
        os.fsync(file.fileno())
    return digest.hexdigest()


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of a file that `write_tensors` wrote, read once.

    Raises:
        Damaged: it is absent, or another file than the one with this sha256.
        OSError: it cannot be read.
    """
    try:
        tensors, found = _read(path)
    except FileNotFoundError:
        raise Damaged(f"{path}: damaged: the file is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):  # a header of other bytes than were written
        tensors, found = {}, "that of no such file"
    if found != sha256:
        raise Damaged(f"{path}: damaged: its sha256 is not the one in state.json")
    return tensors


def _read(path: Path) -> tuple[dict[str, Tensor], str]:
    """What a file holds, and its sha256."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        tensors = _reserved(file, digest)
        for tensor in tensors.values():
            content = _bytes_of(tensor)
            file.readinto(content)
            digest.update(content)
    return tensors, digest.hexdigest()


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """The length of the header, and the header."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        places[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(places, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _put(content: Any, file: IO[bytes], digest: Any) -> None:
    """Write bytes that reach the system at once, and hash them."""
    file.write(content)
    file.flush()
    digest.update(content)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _reserved(file: BufferedReader, digest: Any) -> dict[str, Tensor]:
    """Tensors yet to be filled with the rest of a file, in order, from its header; no more of them than the file has bytes.

    Raises:
        ValueError: the header does not describe this file.
    """
    left = os.fstat(file.fileno()).st_size - 8
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if size > left:
        raise ValueError("the header is longer than the file")
    text = file.read(size)
    digest.update(length + text)
    left -= size
    tensors: dict[str, Tensor] = {}
    for name, facts in json.loads(text).items():
        tensors[name] = torch.empty(facts["shape"], dtype=_DTYPES[facts["dtype"]], device="meta")
        left -= tensors[name].nbytes
    if left:
        raise ValueError("the header is of a file of another size")
    try:
        return {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}
    except RuntimeError as error:  # of torch's allocator; it says nothing about the file
        raise OSError(errno.ENOMEM, "there is not enough memory for its tensors", file.name) from error
