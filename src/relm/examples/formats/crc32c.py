"""CRC-32C (Castagnoli; RFC 3720, section 12.1) of many records at once, and TensorFlow's masked form.

A CRC without its initial and final inversions is linear: the checksum of a block is the exclusive or of one table entry for
each of its bytes, by the byte's offset. So the blocks of all records are looked up together, and a block's result enters the
next block as if it were added to its first four bytes.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Checksums = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # with the bits reversed
INVERSION = 0xFFFFFFFF
BLOCK = 128
# Records at once: as many as fit into the cache.
TOGETHER = 256
# tensorflow/tsl/lib/hash/crc32c.h: a checksum of data that holds checksums is weak, so those that are stored are changed.
MASK_DELTA = 0xA282EAD8


def crc32c(records: Sequence[bytes]) -> Checksums:
    """Return the checksum of each record; memory grows with the longest record.

    >>> hex(crc32c([b"123456789"])[0])
    '0xe3069283'
    """
    parts = [_compute_checksums(records[first : first + TOGETHER]) for first in range(0, len(records), TOGETHER)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)


def _compute_checksums(records: Sequence[bytes]) -> Checksums:
    # Leading zeros leave a register of zero unchanged, so records are padded in front. The usual initial value, all ones,
    # is what `_prefix` leaves in the register.
    lead = _prefix()
    width = -(-(len(lead) + max(map(len, records))) // BLOCK) * BLOCK
    content = np.frombuffer(b"".join([(lead + record).rjust(width, b"\0") for record in records]), dtype=np.uint8)
    blocks = content.reshape(len(records), width // BLOCK, BLOCK)
    register = np.zeros(len(records), dtype="<u4")
    for number in range(width // BLOCK):
        block = blocks[:, number].astype(np.intp)
        block[:, :4] ^= register.view(np.uint8).reshape(-1, 4)
        block += _table_starts()
        register = np.bitwise_xor.reduce(_tables().take(block), axis=1)
    return register ^ np.uint32(INVERSION)


def mask_checksums(checksums: Checksums) -> Checksums:
    """Return the checksums in the form of TFRecords: rotated by 15 bits, and a constant added."""
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + np.uint32(MASK_DELTA)


@functools.cache
def _byte_table() -> list[int]:
    """Return the register after each byte, from a register of zero."""
    table = []
    for register in range(256):
        for _ in range(8):
            register = (register >> 1) ^ (POLYNOMIAL if register & 1 else 0)
        table.append(register)
    return table


@functools.cache
def _tables() -> Checksums:
    """Return the register at a block's end after each byte at each offset, from a register of zero: (BLOCK * 256,)."""
    one_byte = np.array(_byte_table(), dtype="<u4")
    tables = np.empty((BLOCK, 256), dtype="<u4")
    tables[-1] = one_byte
    for offset in range(BLOCK - 2, -1, -1):
        later = tables[offset + 1]
        tables[offset] = (later >> np.uint32(8)) ^ one_byte[later & np.uint32(255)]
    return tables.ravel()


@functools.cache
def _table_starts() -> npt.NDArray[np.intp]:
    return np.arange(BLOCK, dtype=np.intp) * 256


@functools.cache
def _prefix() -> bytes:
    """Return the four bytes that turn a register of zero into all ones, found by running the register backwards."""
    by_highest_byte = {entry >> 24: number for number, entry in enumerate(_byte_table())}
    register = INVERSION
    for _ in range(4):
        number = by_highest_byte[register >> 24]
        register = ((register ^ _byte_table()[number]) << 8 | number) & INVERSION
    return register.to_bytes(4, "little")
