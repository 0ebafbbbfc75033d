import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfrecord.reader import tfrecord_loader
from tfrecord.writer import TFRecordWriter

from relm.errors import RelmError
from relm.examples.as_published import instances
from relm.examples.formats import tfrecord
from relm.examples.formats.tfrecord import decode_example, encode_example, read_records, write_records

EXAMPLES: list[dict[str, Any]] = [
    {"input_ids": [0, 1, 127, 128, 50_256, 2**40], "weights": [1.0, 0.5], "text": [b"caf\xc3\xa9", b""]},
    {"input_ids": [-1], "weights": [0.0], "text": [b"x"]},
    {"input_ids": list(range(3000)), "weights": [0.25] * 70, "text": [bytes(900)]},
]


def written(path: Path, records: list[bytes]) -> Path:
    assert write_records(path, records) == len(records)
    return path


def features_of(example: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": np.array(example["input_ids"]), "weights": np.array(example["weights"]), "text": example["text"]}


def test_another_package_reads_what_is_written(tmp_path) -> None:
    path = written(tmp_path / "a.tfrecord", [encode_example(features_of(example)) for example in EXAMPLES])
    found = list(tfrecord_loader(str(path), None, {"input_ids": "int", "weights": "float", "text": "byte"}))
    assert len(found) == len(EXAMPLES)
    for read, example in zip(found, EXAMPLES, strict=True):
        assert read["input_ids"].tolist() == example["input_ids"]
        assert read["weights"].tolist() == example["weights"]
    assert found[2]["text"] == bytes(900)


def test_what_another_package_writes_is_read(tmp_path) -> None:
    writer = TFRecordWriter(str(tmp_path / "a.tfrecord"))
    for example in EXAMPLES:
        writer.write(
            {
                "input_ids": (example["input_ids"], "int"),
                "weights": (example["weights"], "float"),
                "text": (example["text"], "byte"),
            }
        )
    writer.close()
    found = [decode_example(record, "here") for record in read_records(tmp_path / "a.tfrecord")]
    for read, example in zip(found, EXAMPLES, strict=True):
        assert read["input_ids"].dtype == np.int64
        assert read["input_ids"].tolist() == example["input_ids"]
        assert read["weights"].dtype == np.float32
        assert read["weights"].tolist() == example["weights"]
        assert read["text"] == example["text"]


def test_a_record_is_length_checksum_data_checksum(tmp_path) -> None:
    content = written(tmp_path / "a.tfrecord", [b"123456789"]).read_bytes()
    assert content[:8] == struct.pack("<Q", 9)
    assert content[12:21] == b"123456789"
    # crc32c(b"123456789") is e3069283; rotated right by 15 bits c507c60d; plus a282ead8.
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF
    assert content[21:] == struct.pack("<I", (rotated + 0xA282EAD8) % 2**32)


def test_the_encoding_is_fixed_and_keeps_types(tmp_path) -> None:
    features = {"b": np.array([True, False]), "a": np.array([0.5], dtype=np.float64), "c": np.array([], dtype=np.int64)}
    record = encode_example(features)
    assert record == encode_example(dict(reversed(list(features.items()))))
    found = decode_example(record, "here")
    assert list(map(str, (found[name].dtype for name in "abc"))) == ["float32", "int64", "int64"]
    assert [found[name].tolist() for name in "abc"] == [[0.5], [1, 0], []]


@pytest.mark.parametrize("together", [1, 3, 1000])
def test_records_are_the_same_however_they_are_checked(tmp_path, monkeypatch, together) -> None:
    records = [bytes([number]) * (number * 7 % 40) for number in range(50)]
    monkeypatch.setattr(instances, "BLOCK", together)
    path = written(tmp_path / "a.tfrecord", records)
    for batch, size in ((1, 10**6), (7, 10**6), (1000, 100)):
        monkeypatch.setattr(tfrecord, "BATCH", batch)
        monkeypatch.setattr(tfrecord, "BATCH_BYTES", size)
        assert list(read_records(path)) == records


@pytest.mark.parametrize(
    ("byte", "message"),
    [
        (36, r"record 1 at byte 35: the checksum of its length is"),
        (35 + 9, r"record 1 at byte 35: the checksum of its length is"),
        (35 + 15, r"record 1 at byte 35: the checksum of its data is"),
        (35 + 12 + 40 + 1, r"record 1 at byte 35: the checksum of its data is"),
    ],
)
def test_a_changed_byte_is_found_with_its_record_and_place(tmp_path, byte, message) -> None:
    path = written(tmp_path / "a.tfrecord", [bytes(19), b"x" * 40, b"y" * 5])
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(RelmError, match=rf"a\.tfrecord: {message}"):
        list(read_records(path))


@pytest.mark.parametrize("left", [1, 7, 11, 15, 20, 55])
def test_a_truncated_file_is_found_with_its_record_and_place(tmp_path, left) -> None:
    path = written(tmp_path / "a.tfrecord", [bytes(19), b"x" * 40])
    path.write_bytes(path.read_bytes()[: 35 + left])
    records = read_records(path)
    assert next(records) == bytes(19)
    with pytest.raises(RelmError, match=r"a\.tfrecord: record 1 at byte 35: the file ends inside it: truncated"):
        next(records)


def test_another_kind_of_file_is_refused(tmp_path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"{'tokens': [1, 2, 3]}" * 10)
    with pytest.raises(RelmError, match=r"a\.tfrecord: record 0 at byte 0: the checksum of its length is wrong"):
        list(read_records(tmp_path / "a.tfrecord"))
    with pytest.raises(RelmError, match=r"b\.tfrecord: no such file"):
        list(read_records(tmp_path / "b.tfrecord"))
    with pytest.raises(RelmError, match=r"here: not a tf\.train\.Example"):
        decode_example(b"\xff\xff\xff", "here")


def test_an_unfinished_file_leaves_nothing(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_records(tmp_path / "a.tfrecord", (bytes(1 // (1 - number)) for number in range(2)))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_has_no_records(tmp_path) -> None:
    assert list(read_records(written(tmp_path / "a.tfrecord", []))) == []
