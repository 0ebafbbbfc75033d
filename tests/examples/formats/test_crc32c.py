import crc32c as peer
import numpy as np

from relm.examples.formats import crc32c as ours


def test_the_published_vectors_come_out() -> None:
    """RFC 3720, appendix B.4, and the check value of the CRC catalogue."""
    vectors = {
        b"123456789": 0xE3069283,
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(range(31, -1, -1)): 0x113FDB5C,
        b"": 0,
    }
    assert ours.crc32c(list(vectors)).tolist() == list(vectors.values())


def test_every_length_agrees_with_another_implementation() -> None:
    content = np.random.default_rng(0).bytes(3 * ours.BLOCK)
    records = [content[:size] for size in range(len(content))]
    assert ours.crc32c(records).tolist() == [peer.crc32c(record) for record in records]
    assert ours.crc32c(records[::-1]).tolist() == [peer.crc32c(record) for record in records[::-1]]
    assert ours.crc32c([]).tolist() == []


def test_the_mask_rotates_and_adds() -> None:
    # 0x80008001 rotated right by 15 bits is 0x00030001.
    assert ours.mask_checksums(np.array([0x80008001], dtype=np.uint32)).tolist() == [0x00030001 + 0xA282EAD8]
    assert ours.mask_checksums(np.array([0xFFFFFFFF], dtype=np.uint32)).tolist() == [0xA282EAD7]
