"""TFRecord files of `tf.train.Example`, without TensorFlow.

A record is its length (uint64), the length's masked CRC-32C, the data and the data's masked CRC-32C, all little-endian
(tensorflow/core/lib/io/record_writer.h). The data is an Example: a map from names to lists of int64, float32 or bytes
(tensorflow/core/example/example.proto).
"""

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from relm.artifact import atomic_file, sidecar_of
from relm.errors import RelmError
from relm.examples.as_published.instances import batched
from relm.examples.formats.crc32c import crc32c, mask_checksums

Features = dict[str, Any]
"""Name -> int64 array, float32 array, or list of bytes."""

# Records that are checked together: the most records, and the most bytes.
BATCH, BATCH_BYTES = 1024, 2**22
HEADER, TRAILER = 12, 4
AGAIN = "copy or make the file again"


def write_records(path: Path, examples: Iterable[bytes]) -> int:
    """Write the data of some records to a file, which appears whole; return their count."""
    count = 0
    with atomic_file(path) as file:
        for records in batched(examples):
            lengths = [struct.pack("<Q", len(record)) for record in records]
            checks = [mask_checksums(crc32c(part)).astype("<u4").tobytes() for part in (lengths, records)]
            for number, (length, record) in enumerate(zip(lengths, records, strict=True)):
                span = slice(4 * number, 4 * number + 4)
                file.write(b"".join((length, checks[0][span], record, checks[1][span])))
            count += len(records)
        sidecar_of(path).unlink(missing_ok=True)
    return count


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the data of each record after comparing its checksums."""
    if not path.exists():
        raise RelmError(f"{path}: no such file")
    size, waiting, waiting_bytes, end, number = path.stat().st_size, [], 0, 0, 0
    with open(path, "rb") as file:
        while end < size:
            whole = _read_record(file, size - end)
            waiting.append((number, end, whole))
            waiting_bytes += len(whole)
            cut = len(whole) < HEADER + TRAILER or len(whole) != _record_size(whole)
            if cut or len(waiting) == BATCH or waiting_bytes >= BATCH_BYTES or end + len(whole) == size:
                yield from _check_records(waiting, path, cut)
                waiting, waiting_bytes = [], 0
            number, end = number + 1, end + len(whole)


def encode_example(features: Mapping[str, npt.ArrayLike | Sequence[bytes]]) -> bytes:
    """Return an Example as bytes, names sorted; integers and booleans become int64, floats float32, bytes stay."""
    example = _example_class()()
    for name, values in features.items():
        feature = example.features.feature[name]
        if len(values) and isinstance(values[0], bytes):  # type: ignore[arg-type, index]
            feature.bytes_list.value.extend(values)
            continue
        array = np.asarray(values)
        kind = feature.float_list if array.dtype.kind == "f" else feature.int64_list
        kind.SetInParent()  # an empty list has a type, too
        kind.value.extend((array.astype(np.int64) if array.dtype == bool else array).tolist())
    return bytes(example.SerializeToString(deterministic=True))


def decode_example(record: bytes, location: str) -> Features:
    """Return the features of an Example; `location` is for messages."""
    example = _example_class()()
    try:
        example.ParseFromString(record)
    except message.DecodeError as error:
        raise RelmError(
            f"{location}: not a tf.train.Example ({error}); its data is something else, which cannot be read"
        ) from None
    features: Features = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            features[name] = list(feature.bytes_list.value)
        else:
            values, dtype = (feature.float_list, np.float32) if kind == "float_list" else (feature.int64_list, np.int64)
            features[name] = np.array(values.value, dtype=dtype)
    return features


def _read_record(file: IO[bytes], left: int) -> bytes:
    """Return length, data and checksums of a record; fewer bytes where the file ends or is shorter than the length."""
    head = file.read(HEADER)
    if len(head) < HEADER or _record_size(head) > left:
        return head
    return head + file.read(_record_size(head) - HEADER)


def _record_size(whole: bytes) -> int:
    return HEADER + int.from_bytes(whole[:8], "little") + TRAILER


def _check_records(waiting: list[tuple[int, int, bytes]], path: Path, cut: bool) -> Iterator[bytes]:
    """Yield the data of records, after comparing both checksums of each; `cut`: the last one is not whole."""
    whole = [record for _, _, record in (waiting[:-1] if cut else waiting)]
    for what, start, stop in (("length", 0, 8), ("data", HEADER, -TRAILER)):
        found = mask_checksums(crc32c([record[start:stop] for record in whole]))
        stored = np.array([int.from_bytes(record[stop:][:4], "little") for record in whole], dtype=np.uint32)
        for index in np.flatnonzero(found != stored)[:1].tolist():
            number, offset, _ = waiting[index]
            raise RelmError(
                f"{path}: record {number:,} at byte {offset:,}: the checksum of its {what} is {stored[index]:08x}, "
                f"but the {what} gives {found[index]:08x}: damaged, or no TFRecord; {AGAIN}"
            )
    yield from (record[HEADER:-TRAILER] for record in whole)
    if cut:
        raise _cut_error(*waiting[-1], path)


def _cut_error(number: int, offset: int, record: bytes, path: Path) -> RelmError:
    location = f"{path}: record {number:,} at byte {offset:,}"
    stored, right = record[8:HEADER], mask_checksums(crc32c([record[:8]])).astype("<u4").tobytes()
    if len(record) >= HEADER and stored != right:
        return RelmError(f"{location}: the checksum of its length is wrong: damaged, or no TFRecord; {AGAIN}")
    return RelmError(f"{location}: the file ends inside it: truncated; {AGAIN}")


@functools.cache
def _example_class() -> Any:
    """Return the message type Example, in its own pool: another library of this process may have registered the same names."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def field(owner: Any, name: str, number: int, kind: int, repeated: bool = False, of: str | None = None) -> Any:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        type_name = f".tensorflow.{of}" if of else None
        return owner.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)

    lists = (("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT), ("Int64List", kinds.TYPE_INT64))
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(lists, 1):
        field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
        field(feature, f"{name[:-4].lower()}_list", number, kinds.TYPE_MESSAGE, of=name).oneof_index = 0
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, kinds.TYPE_STRING)
    field(entry, "value", 2, kinds.TYPE_MESSAGE, of="Feature")
    field(features, "feature", 1, kinds.TYPE_MESSAGE, repeated=True, of="Features.FeatureEntry")
    field(file.message_type.add(name="Example"), "features", 1, kinds.TYPE_MESSAGE, of="Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
