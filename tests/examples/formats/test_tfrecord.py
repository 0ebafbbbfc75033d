import struct
from typing import Any

import crc32c as peer
import numpy as np
import pytest
from tfrecord.reader import tfrecord_loader

from relm.examples.as_published import instances
from relm.examples.formats.tfrecord import crc32c, encode_example, mask_checksums, write_records

EXAMPLES: list[dict[str, Any]] = [
    {"input_ids": [0, 1, 127, 128, 50_256, 2**40], "weights": [1.0, 0.5]},
    {"input_ids": [-1], "weights": [0.0]},
    {"input_ids": list(range(3000)), "weights": [0.25] * 70},
]


@pytest.mark.parametrize("together", [1, 2, 1000])
def test_another_package_reads_what_is_written(tmp_path, monkeypatch, together) -> None:
    monkeypatch.setattr(instances, "BLOCK", together)
    assert write_records(tmp_path / "a.tfrecord", map(encode_example, EXAMPLES)) == 3
    found = list(tfrecord_loader(str(tmp_path / "a.tfrecord"), None, {"input_ids": "int", "weights": "float"}))
    assert [{name: values.tolist() for name, values in read.items()} for read in found] == EXAMPLES


def test_a_record_is_length_checksum_data_checksum(tmp_path) -> None:
    assert write_records(tmp_path / "a.tfrecord", [b"123456789"]) == 1
    content = (tmp_path / "a.tfrecord").read_bytes()
    assert content[:8] == struct.pack("<Q", 9)
    assert content[12:21] == b"123456789"
    # crc32c(b"123456789") is e3069283; rotated right by 15 bits c507c60d; plus a282ead8.
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF
    assert content[21:] == struct.pack("<I", (rotated + 0xA282EAD8) % 2**32)


def test_the_encoding_is_fixed_and_keeps_types() -> None:
    """The bytes are those of the official `example.proto`."""
    features = {"b": np.array([True, False]), "a": np.array([0.5], dtype=np.float64), "c": np.array([], dtype=np.int64)}
    expected = "0a250a0d0a0161120812060a040000003f0a0b0a016212061a040a0201000a070a016312021a00"
    assert encode_example(features).hex() == encode_example(dict(reversed(features.items()))).hex() == expected


def test_checksums_are_those_of_another_implementation() -> None:
    """The vectors are those of RFC 3720, appendix B.4, and the check value of the CRC catalogue."""
    vectors = {
        b"123456789": 0xE3069283,
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(range(31, -1, -1)): 0x113FDB5C,
        b"": 0,
    }
    assert crc32c(list(vectors)).tolist() == list(vectors.values())
    content = np.random.default_rng(0).bytes(400)
    records = [content[:size] for size in range(len(content))]
    assert crc32c(records).tolist() == [peer.crc32c(record) for record in records]
    assert crc32c([]).tolist() == []


def test_the_mask_rotates_and_adds() -> None:
    # 0x80008001 rotated right by 15 bits is 0x00030001.
    assert mask_checksums(np.array([0x80008001], dtype=np.uint32)).tolist() == [0x00030001 + 0xA282EAD8]
    assert mask_checksums(np.array([0xFFFFFFFF], dtype=np.uint32)).tolist() == [0xA282EAD7]
