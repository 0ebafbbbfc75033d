"""Variables of a TensorFlow checkpoint, read without TensorFlow.

A checkpoint is a tensor bundle (tensorflow/core/util/tensor_bundle): `NAME.index` and data files `NAME.data-NNNNN-of-NNNNN`.
The index is a table as LevelDB writes it (tensorflow/core/lib/io/format.h): blocks of entries, whose keys leave out the
beginning that they share with the key before, a block that lists these blocks, and a footer that says where that one begins.
The entry with the empty key describes the bundle (BundleHeaderProto), each other one a variable (BundleEntryProto). Blocks and
variables have checksums, and each that is read is compared.
"""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.formats.crc32c import crc32c_of_large, mask_checksums

FOOTER = 48
MAGIC = 0xDB4775248B80FB57
# A byte that names the compression, and the checksum, follow each block.
TRAILER = 5
# tensorflow/core/framework/types.proto; bfloat16 is the upper half of a float32.
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "<u2", 19: "<f2"}
BFLOAT16 = 14
FILES = re.compile(r"(.+?)(\.index|\.meta|\.data-\d{5}-of-\d{5})?")
AGAIN = "copy the checkpoint again"


class Variable(NamedTuple):
    """The description of one variable."""

    dtype: int
    """A key of DTYPES, or another number of TensorFlow's types."""
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    """Bytes."""
    checksum: int
    partitioned: bool


class TensorBundle:
    """A checkpoint, whose variables are read one by one."""

    def __init__(self, prefix: Path) -> None:
        """Read the index.

        Raises:
            RelmError: it is absent, truncated, damaged, or something else.
        """
        self.index = Path(f"{prefix}.index")
        self._prefix = prefix
        content = _read_index(self.index)
        try:
            entries = dict(_read_table(content, self.index))
            header = _read_message(entries.pop(b"", b""))
            self.variables = {key.decode(): _read_entry(value) for key, value in entries.items()}
        except (IndexError, KeyError, TypeError, ValueError):
            raise RelmError(
                f"{self.index}: an entry of it cannot be read, though its checksum is right: not an index of variables"
            ) from None
        self._shards = header.get(1, [0])[-1]
        if header.get(2, [0])[-1]:
            raise RelmError(
                f"{self.index}: was written on a big-endian machine, which is not supported; save it on another one"
            )

    def shard(self, number: int) -> Path:
        """Return a data file."""
        return Path(f"{self._prefix}.data-{number:05d}-of-{self._shards:05d}")

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return a variable; bfloat16 becomes float32.

        Raises:
            RelmError: its data file is absent or truncated, its bytes are not those that were saved, or its type is no number.
        """
        variable, path = self.variables[name], self.shard(self.variables[name].shard)
        self._require_array(name)
        try:
            with open(path, "rb") as file:
                file.seek(variable.offset)
                content = file.read(variable.size)
        except FileNotFoundError:
            raise RelmError(
                f"{path}: no such file; a checkpoint is all of its files: copy it beside {self.index.name}"
            ) from None
        except OSError as error:
            raise RelmError(f"{path}: cannot be read: {error.strerror or error}; {AGAIN}") from None
        if len(content) < variable.size:
            end = variable.offset + variable.size
            raise RelmError(f"{path}: has {path.stat().st_size:,} bytes, but {name} ends at byte {end:,}: truncated; {AGAIN}")
        found = _mask(content)
        if found != variable.checksum:
            raise RelmError(
                f"{path}: the checksum of {name} at byte {variable.offset:,} is {variable.checksum:08x}, but its bytes give "
                f"{found:08x}: damaged; {AGAIN}"
            )
        array = np.frombuffer(content, dtype=DTYPES[variable.dtype]).reshape(variable.shape)
        return (array.astype("<u4") << 16).view("<f4") if variable.dtype == BFLOAT16 else array

    def _require_array(self, name: str) -> None:
        variable = self.variables[name]
        if variable.partitioned:
            raise RelmError(f"{self.index}: {name} is saved in slices, which is not supported; save it as one variable")
        if variable.dtype not in DTYPES:
            raise RelmError(f"{self.index}: {name} has TensorFlow's type {variable.dtype}, expected numbers")
        if prod(variable.shape) * np.dtype(DTYPES[variable.dtype]).itemsize != variable.size:
            raise RelmError(
                f"{self.index}: {name} has shape {variable.shape} and {variable.size:,} bytes, which do not fit; {AGAIN}"
            )


def checkpoint_prefix(path: Path) -> Path:
    """Return the name that the files of a checkpoint have in common, from any of them or that name itself.

    >>> str(checkpoint_prefix(Path("run/ckpt-7031.data-00000-of-00001")))
    'run/ckpt-7031'
    """
    match = FILES.fullmatch(path.name)
    return path.with_name(match[1]) if match else path


def _read_index(path: Path) -> bytes:
    """Return the content of an index whose end is that of one."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RelmError(
            f"{path}: no such file; give the name that a checkpoint's files share, such as bert_model.ckpt"
        ) from None
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror or error}; {AGAIN}") from None
    if len(content) < FOOTER or int.from_bytes(content[-8:], "little") != MAGIC:
        raise RelmError(f"{path}: does not end as the index of a TensorFlow checkpoint: truncated, or another file; {AGAIN}")
    return content


def _read_table(content: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a table."""
    footer = len(content) - FOOTER
    _, position = _read_handle(content, footer)  # a block of statistics, which TensorFlow leaves empty
    (start, size), _ = _read_handle(content, position)
    for _, handle in _read_entries(_read_block(content, start, size, path)):
        (start, size), _ = _read_handle(handle, 0)
        yield from _read_entries(_read_block(content, start, size, path))


def _read_block(content: bytes, start: int, size: int, path: Path) -> bytes:
    """Return a block after comparing its checksum."""
    whole = content[start : start + size + TRAILER]
    if len(whole) < size + TRAILER or _mask(whole[:-4]) != int.from_bytes(whole[-4:], "little"):
        raise RelmError(f"{path}: the block at byte {start:,} of {size:,} bytes has a wrong checksum: damaged; {AGAIN}")
    if whole[size]:
        raise RelmError(f"{path}: is compressed, which TensorFlow's checkpoints are not; save it without compression")
    return whole[:size]


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block, which ends with an index for binary search that is not needed here."""
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    position, key = 0, b""
    while position < end:
        shared, position = _read_varint(block, position)
        unshared, position = _read_varint(block, position)
        size, position = _read_varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + size]
        position += size


def _read_handle(content: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return start and size of a block, and the position after them."""
    start, position = _read_varint(content, position)
    size, position = _read_varint(content, position)
    return (start, size), position


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return a number of protobuf, seven bits in each byte, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ValueError("a number of more than ten bytes")


def _read_message(content: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protobuf message: field number -> its numbers or bytes, in order."""
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(content):
        tag, position = _read_varint(content, position)
        field, kind = divmod(tag, 8)
        value: int | bytes
        if kind == 0:
            value, position = _read_varint(content, position)
        else:
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, position = _read_varint(content, position)
            elif not size:
                raise ValueError(f"a field of kind {kind}")
            value = content[position : position + size]
            position += size
        fields.setdefault(field, []).append(value)
    if position > len(content):
        raise ValueError("a field beyond the end")
    return fields


def _read_entry(content: bytes) -> Variable:
    """Return the variable that a BundleEntryProto describes."""
    fields = _read_message(content)

    def last(field: int, default: Any) -> Any:
        return fields.get(field, [default])[-1]

    sizes = [_read_message(dimension).get(1, [0])[-1] for dimension in _read_message(last(2, b"")).get(2, [])]
    return Variable(
        dtype=last(1, 0),
        shape=tuple(sizes),
        shard=last(3, 0),
        offset=last(4, 0),
        size=last(5, 0),
        checksum=int.from_bytes(last(6, b""), "little"),
        partitioned=7 in fields,
    )


def _mask(content: bytes) -> int:
    return int(mask_checksums(np.array([crc32c_of_large(content)], dtype=np.uint32))[0])
