"""Messages between the training loop and the worker of an IPU run, over a pair of pipes.

A message is `MAGIC`, the length of its header in 8 bytes, the header in JSON, and the bytes of its arrays one after the other.
Nothing that is received is executed, and its lengths are checked before memory is allocated. Runs on Python 3.8; numpy is
imported where arrays are, so that a worker without numpy can still say so.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"relm ipu"
# The longest header, and the most bytes of all arrays of a message.
HEADER_LIMIT, ARRAYS_LIMIT = 1 << 24, 1 << 37
TYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64")
_LENGTH = struct.Struct("<Q")


class ChannelError(Exception):
    """The other end sent something that is not a message, or ended within one."""


class Closed(ChannelError):
    """The other end closed its pipe between two messages."""


class Message(NamedTuple):
    """A request, or the answer to one."""

    kind: str
    fields: dict[str, Any]
    """Values in JSON."""
    arrays: dict[str, np.ndarray]


def send(stream: IO[bytes], message: Message) -> None:
    """Write a message."""
    arrays = _in_order(message.arrays) if message.arrays else {}
    shapes = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({"kind": message.kind, "fields": message.fields, "arrays": shapes}).encode()
    stream.write(MAGIC + _LENGTH.pack(len(header)) + header)
    for array in arrays.values():
        stream.write(array.reshape(-1).view("uint8").data)
    stream.flush()


def _in_order(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with their elements one after the other."""
    import numpy as np

    for name, array in arrays.items():
        if array.dtype.name not in TYPES or not array.dtype.isnative:
            raise ValueError(f"array {name} has type {array.dtype}, expected one of {', '.join(TYPES)}")
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}


def receive(stream: IO[bytes]) -> Message:
    """Read a message."""
    start = stream.read(len(MAGIC))
    if not start:
        raise Closed("the pipe was closed")
    if start != MAGIC:
        raise ChannelError(f"expected a message, which begins with {MAGIC!r}, found {start!r}")
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    if length > HEADER_LIMIT:
        raise ChannelError(f"a header of {length} bytes exceeds the limit of {HEADER_LIMIT}")
    kind, fields, shapes = _parse_header(bytes(_read(stream, length)))
    return Message(kind, fields, {name: _read_array(stream, dtype, shape) for name, dtype, shape in shapes})


def _parse_header(header: bytes) -> tuple[str, dict[str, Any], list[tuple[str, str, list[int]]]]:
    """Return a header's kind, fields, and the name, type and shape of each array."""
    try:
        content = json.loads(header)
        kind, fields, shapes = content["kind"], content["fields"], content["arrays"]
        well_formed = isinstance(kind, str) and isinstance(fields, dict) and all(map(_is_shape, shapes))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChannelError(f"the header is not valid: {type(error).__name__}: {error}") from None
    if not well_formed or len({name for name, _, _ in shapes}) < len(shapes):
        raise ChannelError(f"the header is not valid: {header[:200]!r}")
    size = sum(_size(dtype) * math.prod(shape) for _, dtype, shape in shapes)
    if size > ARRAYS_LIMIT:
        raise ChannelError(f"arrays of {size} bytes exceed the limit of {ARRAYS_LIMIT}")
    return kind, fields, [(name, dtype, shape) for name, dtype, shape in shapes]


def _is_shape(entry: Any) -> bool:
    """Return True for the name, the type and the shape of an array."""
    name, dtype, shape = entry
    whole = isinstance(shape, list) and len(shape) <= 8 and all(type(length) is int and length >= 0 for length in shape)
    return isinstance(name, str) and dtype in TYPES and whole


def _size(dtype: str) -> int:
    """Return the bytes of an element."""
    digits = "".join(letter for letter in dtype if letter.isdigit())
    return int(digits) // 8 if digits else 1


def _read_array(stream: IO[bytes], dtype: str, shape: list[int]) -> np.ndarray:
    """Return an array whose bytes follow."""
    import numpy as np

    return np.frombuffer(_read(stream, _size(dtype) * math.prod(shape)), dtype=dtype).reshape(shape)


def _read(stream: IO[bytes], length: int) -> bytearray:
    """Return this many bytes."""
    content = bytearray(length)
    view, have = memoryview(content), 0
    while have < length:
        count = stream.readinto(view[have:])  # type: ignore[attr-defined]
        if not count:
            raise ChannelError(f"the pipe was closed within a message, after {have} of {length} bytes")
        have += count
    return content
