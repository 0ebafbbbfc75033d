import dataclasses
import errno
import os
import resource
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.examples import storage
from relm.examples.manifest import Shard
from relm.examples.storage import TokenStream, dtype_of, shard_writer


def i4(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def written(path: Path, *documents: list[int], vocabulary_size: int = 300) -> Shard:
    with shard_writer(path, vocabulary_size) as writer:
        for document in documents:
            writer.append(i4(*document), i4(len(document)))
    assert (writer.sha256, writer.index_sha256) == (sha256_of(path), sha256_of(path.with_suffix(".idx")))
    return Shard(path.name, sha256_of(path), path.stat().st_size, writer.dtype, writer.tokens, writer.documents)


def test_the_files_are_megatrons_byte_for_byte(tmp_path) -> None:
    written(tmp_path / "a.bin", [1, 2, 256], [0], [258, 0])
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<6H", 1, 2, 256, 0, 258, 0)
    assert (tmp_path / "a.idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", 1)  # version
        + struct.pack("<B", 8)  # uint16
        + struct.pack("<Q", 3)  # sequences
        + struct.pack("<Q", 4)  # entries of the document index
        + struct.pack("<3i", 3, 1, 2)  # sizes in tokens
        + struct.pack("<3q", 0, 6, 8)  # byte offsets
        + struct.pack("<4q", 0, 1, 2, 3)  # first sequence of each document, and the end
    )


def test_a_large_vocabulary_gets_four_bytes_a_token(tmp_path) -> None:
    assert [dtype_of(size) for size in (257, 65_499, 65_500, 250_000)] == ["uint16", "uint16", "int32", "int32"]
    written(tmp_path / "a.bin", [1, 70_000], [3], vocabulary_size=70_001)
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<3i", 1, 70_000, 3)
    index = (tmp_path / "a.idx").read_bytes()
    assert index[17] == 4  # int32
    assert index[34:58] == struct.pack("<2i", 2, 1) + struct.pack("<2q", 0, 8)


def test_the_index_is_the_same_whatever_its_blocks(tmp_path, monkeypatch) -> None:
    documents = [[1] * size for size in (3, 1, 4, 1, 5, 9, 2)]
    written(tmp_path / "whole.bin", *documents)
    for block in (1, 2, 3, 7, 8):
        monkeypatch.setattr(storage, "BLOCK", block)
        written(tmp_path / "blocks.bin", *documents)
        assert (tmp_path / "blocks.idx").read_bytes() == (tmp_path / "whole.idx").read_bytes()


def test_memory_does_not_grow_with_the_count_of_documents(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "BLOCK", 2**12)
    chunk, sizes = np.ones(2**12, dtype=np.int32), np.ones(2**12, dtype=np.int32)
    tracemalloc.start()
    with shard_writer(tmp_path / "a.bin", 300) as writer:
        for _ in range(256):
            writer.append(chunk, sizes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "a.idx").stat().st_size == 34 + 20 * 2**20 + 8
    assert peak < 2**20


@pytest.mark.parametrize("limit", [100, 20_000, 30_000, 100_000])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path, limit) -> None:
    """The disk fills while tokens are written, when the last ones leave the buffer, or while the index is written."""

    def fill() -> None:
        with shard_writer(tmp_path / "a.bin", 300) as writer:
            for size in (10_000, 1000):
                writer.append(np.ones(size, dtype=np.int32), np.ones(size, dtype=np.int32))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(RelmError, match=r"a\.(bin|idx): cannot be written: File too large; nothing was changed"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_tokens_that_fail_to_reach_the_disk_leave_no_index_alone(tmp_path, monkeypatch) -> None:
    """The index is complete before the tokens are brought to disk; neither may get its name when that fails."""
    written(tmp_path / "a.bin", [1, 2])
    old = (tmp_path / "a.idx").read_bytes()
    real = os.fsync

    def full(number: int) -> None:
        if os.readlink(f"/proc/self/fd/{number}").endswith(".a.bin.partial"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RelmError, match="cannot be written: No space left on device"):
        written(tmp_path / "a.bin", [1, 2], [3, 4, 5])
    assert (tmp_path / "a.idx").read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_a_token_outside_the_vocabulary_is_refused(tmp_path) -> None:
    with pytest.raises(RelmError, match=r"a\.bin: token ids 5 to 300, but the vocabulary has 0 to 299"):
        written(tmp_path / "a.bin", [5, 300])
    with pytest.raises(RelmError, match="token ids -1 to 5"):
        written(tmp_path / "a.bin", [5, -1])
    assert list(tmp_path.iterdir()) == []


def test_a_document_too_long_for_the_format_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "LARGEST_DOCUMENT", 3)
    with pytest.raises(RelmError, match=r"a document has 4 tokens, the format holds 3"):
        written(tmp_path / "a.bin", [1, 1, 1], [1, 1, 1, 1])


@pytest.fixture
def stream(tmp_path: Path) -> TokenStream:
    """Write 0 to 9 in four shards, one of them empty and one of another width."""
    shards = [
        written(tmp_path / "a.bin", [0, 1, 2], [3]),
        written(tmp_path / "b.bin"),
        written(tmp_path / "c.bin", [4], vocabulary_size=100_000),
        written(tmp_path / "d.bin", [5, 6, 7, 8, 9]),
    ]
    return TokenStream(tmp_path / "manifest.json", shards)


def test_shards_read_as_one_sequence(stream) -> None:
    assert len(stream) == 10
    for start in range(11):
        for stop in range(start, 11):
            found = stream.tokens(start, stop)
            assert found.dtype == np.int64
            assert found.tolist() == list(range(start, stop))
    assert [stream.tokens(*span).tolist() for span in ((8, 99), (10, 12), (5, 3))] == [[8, 9], [], []]


def test_a_damaged_shard_is_refused_by_name(tmp_path) -> None:
    manifest, shard = tmp_path / "manifest.json", written(tmp_path / "a.bin", [1, 2, 3])
    path = tmp_path / "a.bin"
    path.write_bytes(struct.pack("<3H", 1, 2, 4))
    with pytest.raises(RelmError, match=r"a\.bin: changed: sha256 is .*manifest\.json says"):
        TokenStream(manifest, [shard])
    assert TokenStream(manifest, [shard], check_content=False).tokens(0, 3).tolist() == [1, 2, 4]
    path.write_bytes(struct.pack("<2H", 1, 2))
    with pytest.raises(RelmError, match=r"a\.bin: has 4 bytes, .*manifest\.json says 6"):
        TokenStream(manifest, [shard], check_content=False)
    path.unlink()
    with pytest.raises(RelmError, match=r"a\.bin: no such file, although .*manifest\.json lists it"):
        TokenStream(manifest, [shard])


def test_an_index_that_is_not_the_manifests_is_refused(tmp_path) -> None:
    shard = dataclasses.replace(written(tmp_path / "a.bin", [1, 2, 3]), idx_sha256=sha256_of(tmp_path / "a.idx"))
    assert len(TokenStream(tmp_path / "manifest.json", [shard])) == 3
    (tmp_path / "a.idx").write_bytes((tmp_path / "a.idx").read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(RelmError, match=r"a\.idx: not the index that .*manifest\.json lists"):
            TokenStream(tmp_path / "manifest.json", [shard])
        (tmp_path / "a.idx").unlink(missing_ok=True)
    assert len(TokenStream(tmp_path / "manifest.json", [shard], check_content=False)) == 3


def test_a_manifest_that_contradicts_itself_is_refused(tmp_path) -> None:
    shard = written(tmp_path / "a.bin", [1, 2])
    wrong = Shard(shard.file, shard.sha256, shard.size, "int32", shard.tokens, shard.documents)
    with pytest.raises(RelmError, match=r"has 1 int32 tokens, but .*manifest\.json says 2"):
        TokenStream(tmp_path / "manifest.json", [wrong])


@pytest.mark.parametrize(
    ("vocabulary_size", "step", "end", "tokens", "index"),
    [
        (
            50_257,
            7,
            50_256,
            "abe8ed1ca09cee4a985e71f7558829b05c5738f1fcc48607f0c07c9ce049a156",
            "de2357e5c112a29cda42d4772e5d763abe00b66800c48963161754592581ce9a",
        ),
        (
            250_112,
            70_001,
            1,
            "88b6d36fa1cd9b181ecd65a183d0f3a043a6c3e9bf9b81e3ee7fcc209522af6f",
            "4720ea2957306dbe4574bb04a2815cadeecc0437e5615b6e8fe570a169b26d00",
        ),
    ],
)
def test_shards_have_the_bytes_that_megatron_writes(tmp_path, vocabulary_size, step, end, tokens, index) -> None:
    """Compared with files of IndexedDatasetBuilder.add_document of Megatron-LM's megatron/core/datasets/indexed_dataset.py."""

    def token(document: int, position: int) -> int:
        return (step * document * (document if step == 7 else 1) + 3 * position) % vocabulary_size

    documents = [[*(token(number, position) for position in range(1 + number * 5 % 11)), end] for number in range(40)]
    written(tmp_path / "a.bin", *documents, vocabulary_size=vocabulary_size)
    assert (sha256_of(tmp_path / "a.bin"), sha256_of(tmp_path / "a.idx")) == (tokens, index)
