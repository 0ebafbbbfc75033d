"""Write TFRecord files of `tf.train.Example`, without TensorFlow.

A record is its length (uint64), the length's masked CRC-32C, the data and the data's masked CRC-32C, all little-endian
(tensorflow/core/lib/io/record_writer.h). The data is an Example: a map from names to lists of int64 or float32
(tensorflow/core/example/example.proto).
"""

import functools
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relm.artifact import atomic_file, sidecar_of
from relm.examples.as_published.instances import batched

Checksums = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # CRC-32C's (Castagnoli; RFC 3720, section 12.1), with the bits reversed
# tensorflow/tsl/lib/hash/crc32c.h: a checksum of data that holds checksums is weak, so those that are stored are changed.
MASK_DELTA = 0xA282EAD8


def write_records(path: Path, examples: Iterable[bytes]) -> int:
    """Write the data of some records to a file, which appears whole; return their count."""
    count = 0
    with atomic_file(path) as file:
        for records in batched(examples):
            lengths = [struct.pack("<Q", len(record)) for record in records]
            checks = (mask_checksums(crc32c(part)).astype("<u4") for part in (lengths, records))
            for length, length_check, record, check in zip(lengths, next(checks), records, next(checks), strict=True):
                file.write(b"".join((length, length_check.tobytes(), record, check.tobytes())))
            count += len(records)
        sidecar_of(path).unlink(missing_ok=True)
    return count


def encode_example(features: Mapping[str, npt.ArrayLike]) -> bytes:
    """Return an Example as bytes, names sorted; integers and booleans become int64, floats float32."""
    entries = b""
    for name in sorted(features):
        values = np.asarray(features[name])
        is_float = values.dtype.kind == "f"
        packed = values.astype("<f4").tobytes() if is_float else b"".join(map(_varint, values.astype(np.int64).tolist()))
        values_of_kind = _field(2 if is_float else 3, _field(1, packed) if packed else b"")
        entries += _field(1, _field(1, name.encode()) + _field(2, values_of_kind))
    return _field(1, entries)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of Protocol Buffers whose content has a length: a message, a text or packed values."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


@functools.lru_cache(maxsize=2**17)
def _varint(number: int) -> bytes:
    """Return an integer in the groups of seven bits of Protocol Buffers, lowest first; negative ones as two's complement."""
    number &= 2**64 - 1
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def crc32c(records: Sequence[bytes]) -> Checksums:
    """Return the CRC-32C of each record, computed for all of them together, one byte after the other.

    >>> hex(crc32c([b"123456789"])[0])
    '0xe3069283'
    """
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    longest = int(sizes.max(initial=0))
    content = np.frombuffer(b"".join(record.ljust(longest, b"\0") for record in records), np.uint8).reshape(-1, longest or 1)
    register = np.full(len(records), 2**32 - 1, np.uint32)
    table = _byte_table()
    for place in range(longest):
        after = table[register.astype(np.uint8) ^ content[:, place]] ^ (register >> np.uint32(8))
        register = np.where(place < sizes, after, register)
    return ~register


def mask_checksums(checksums: Checksums) -> Checksums:
    """Return the checksums in the form of TFRecords: rotated by 15 bits, and a constant added."""
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + np.uint32(MASK_DELTA)


@functools.cache
def _byte_table() -> Checksums:
    """Return the register after each byte, from a register of zero."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(POLYNOMIAL)
    return table
