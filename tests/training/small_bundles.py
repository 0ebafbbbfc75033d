"""Write small TensorFlow checkpoints, also faulty ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relm.examples.formats.crc32c import crc32c, mask_checksums

TYPES = {"<f4": 1, "<f8": 2, "<i4": 3, "<i8": 9, "<f2": 19}


def masked(content: bytes) -> bytes:
    return mask_checksums(crc32c([content])).astype("<u4").tobytes()


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number: int, value: int | bytes) -> bytes:
    """A field of protobuf: a number, or bytes with their length; zeros and nothing are left out."""
    if isinstance(value, int):
        return varint(8 * number) + varint(value) if value else b""
    return varint(8 * number + 2) + varint(len(value)) + value


def entry(dtype: int, shape: tuple[int, ...], shard: int, offset: int, content: bytes, more: bytes = b"") -> bytes:
    dimensions = b"".join(field(2, field(1, size)) for size in shape)
    place = field(3, shard) + field(4, offset) + field(5, len(content))
    return field(1, dtype) + field(2, dimensions) + place + varint(8 * 6 + 5) + masked(content) + more


def block(entries: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """A block with its trailer; every 16th key is whole."""
    content, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % 16 == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    content += np.array([*(restarts or [0]), len(restarts or [0])], dtype="<u4").tobytes() + bytes([compression])
    return content + masked(content)


def table(entries: Mapping[bytes, bytes], each: int = 10**6, compression: int = 0) -> bytes:
    """An index whose blocks have `each` entries."""
    items, content, handles = sorted(entries.items()), b"", []
    for first in range(0, len(items), each):
        part = items[first : first + each]
        written = block(part, compression)
        # Any key will do from the block's last one to below the next block's first; TensorFlow takes the shortest.
        last = part[-1][0] if first + each < len(items) or not part[-1][0] else bytes([part[-1][0][0] + 1])
        handles.append((last, varint(len(content)) + varint(len(written) - 5)))
        content += written
    footer = b""
    for written in (block([]), block(handles)):
        footer += varint(len(content)) + varint(len(written) - 5)
        content += written
    return content + footer.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


def header(shards: int = 1, big_endian: int = 0) -> bytes:
    return field(1, shards) + field(2, big_endian) + field(3, field(1, 1))


def write_bundle(prefix: Path, values: Mapping[str, Any], shards: int = 1, each: int = 10**6) -> Path:
    """Write a checkpoint with its variables spread over data files, and return the name that its files share."""
    data = [b""] * shards
    entries = {b"": header(shards)}
    for number, (name, value) in enumerate(sorted(values.items())):
        array, shard = np.asarray(value), number % shards
        dtype = TYPES[array.dtype.newbyteorder("<").str]
        entries[name.encode()] = entry(dtype, array.shape, shard, len(data[shard]), array.tobytes())
        data[shard] += array.tobytes()
    for shard, content in enumerate(data):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    Path(f"{prefix}.index").write_bytes(table(entries, each))
    return prefix
