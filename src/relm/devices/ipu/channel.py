"""Messages between the training loop and the worker of an IPU run, over a pair of pipes.

A message is `MAGIC`, the length of its header in 8 bytes, the header in JSON, and the bytes of its arrays one after the other.
Both ends use this module. A missing `MAGIC` shows that something printed text before the worker took its pipes. Runs on Python
3.8, and imports numpy only for arrays, so that a worker without numpy can report that.
"""

from __future__ import annotations

import json
import math
import struct
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"relm ipu"
_LENGTH = struct.Struct("<Q")


class ChannelError(Exception):
    """The other end sent something other than a message, or closed the pipe within one."""


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
    shapes = [[name, array.dtype.name, list(array.shape)] for name, array in message.arrays.items()]
    header = json.dumps({"kind": message.kind, "fields": message.fields, "arrays": shapes}).encode()
    stream.write(MAGIC + _LENGTH.pack(len(header)) + header)
    for array in message.arrays.values():
        stream.write(array.reshape(-1).view("uint8").data)
    stream.flush()


def receive(stream: IO[bytes]) -> Message:
    """Read a message."""
    start = stream.read(len(MAGIC))
    if not start:
        raise Closed("the pipe was closed")
    if start != MAGIC:
        raise ChannelError(f"expected a message, which begins with {MAGIC!r}, found {start!r}")
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    header = json.loads(_read(stream, length))
    return Message(
        header["kind"], header["fields"], {name: _read_array(stream, dtype, shape) for name, dtype, shape in header["arrays"]}
    )


def _read_array(stream: IO[bytes], dtype: str, shape: list[int]) -> np.ndarray:
    """Return an array whose bytes follow."""
    import numpy as np

    size = np.dtype(dtype).itemsize * math.prod(shape)
    return np.frombuffer(_read(stream, size), dtype=dtype).reshape(shape)


def _read(stream: IO[bytes], length: int) -> bytearray:
    """Return this many bytes."""
    content = bytearray(length)  # not bytes, whose arrays would be read-only: torch warns of those
    view, have = memoryview(content), 0
    while have < length:
        count = stream.readinto(view[have:])  # type: ignore[attr-defined]
        if not count:
            raise ChannelError(f"the pipe was closed within a message, after {have} of {length} bytes")
        have += count
    return content
