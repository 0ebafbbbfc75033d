"""Write tokens to disk as a stream in Megatron's indexed format, and memory-map them for reading.

`SHARD.bin` holds the concatenated tokens of all sequences, `SHARD.idx` their offsets (Megatron-LM,
`megatron/data/indexed_dataset.py`, class MMapIndexedDataset). Here a sequence is a document with its end of text.
"""

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from relm.artifact import HashingWriter, atomic_file, sidecar_of
from relm.errors import RelmError
from relm.examples.manifest import AGAIN_SHARD, Shard, require_shard

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
# Name -> numpy's little-endian type and Megatron's code for it.
DTYPES = {"uint16": ("<u2", 8), "int32": ("<i4", 4)}
# Larger vocabularies get int32; 16 bits would hold a few more tokens, but this is Megatron's limit.
LARGEST_UINT16_VOCABULARY = 65_500
LARGEST_DOCUMENT = 2**31 - 1
# Documents whose sizes are in memory at once when the index is written.
BLOCK = 2**20


def dtype_of(vocabulary_size: int) -> Literal["uint16", "int32"]:
    """Return the type in which tokens of a vocabulary are stored, uint16 or int32."""
    return "uint16" if vocabulary_size < LARGEST_UINT16_VOCABULARY else "int32"


def index_of(shard: Path) -> Path:
    """Return ``SHARD.idx`` for ``SHARD.bin``."""
    return shard.with_suffix(".idx")


class ShardWriter:
    """Writes documents to a shard and hashes both files meanwhile; `shard_writer` opens it."""

    def __init__(self, path: Path, vocabulary_size: int, tokens: IO[bytes], index: IO[bytes], sizes: IO[bytes]) -> None:
        self.path = path
        self.vocabulary_size = vocabulary_size
        self.dtype = dtype_of(vocabulary_size)
        self.tokens = self.documents = 0
        self._tokens_file, self._index_file = HashingWriter(tokens), HashingWriter(index)
        self._sizes_file = sizes

    @property
    def sha256(self) -> str:
        """Return the sha256 of the finished `.bin`."""
        return self._tokens_file.sha256

    @property
    def index_sha256(self) -> str:
        """Return the sha256 of the finished `.idx`."""
        return self._index_file.sha256

    def append(self, tokens: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> None:
        """Append documents: their concatenated tokens, and the size of each."""
        if len(sizes) and int(sizes.max()) > LARGEST_DOCUMENT:
            raise RelmError(
                f"{self.path}: a document has {sizes.max():,} tokens, the format holds {LARGEST_DOCUMENT:,}; split it"
            )
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary_size:
            raise RelmError(
                f"{self.path}: token ids {tokens.min()} to {tokens.max()}, but the vocabulary has 0 to "
                f"{self.vocabulary_size - 1}: the tokenizer is inconsistent; make it again"
            )
        assert int(sizes.sum()) == len(tokens)
        # `tofile` would hide a full disk or a lost connection.
        self._tokens_file.write(tokens.astype(DTYPES[self.dtype][0], copy=False).data)
        self._sizes_file.write(sizes.astype("<i4").data)
        self.tokens += len(tokens)
        self.documents += len(sizes)

    def write_index(self) -> None:
        """Write the whole `.idx`: header, sizes, byte offsets, and the sequence at which each document begins."""
        index = self._index_file
        numpy_dtype, code = DTYPES[self.dtype]
        index.write(MAGIC + struct.pack("<QBQQ", VERSION, code, self.documents, self.documents + 1))
        for sizes in self._sizes():
            index.write(sizes.data)
        pointer = 0
        for sizes in self._sizes():
            ends = pointer + np.cumsum(sizes, dtype="<i8") * np.dtype(numpy_dtype).itemsize
            index.write(np.concatenate([[pointer], ends[:-1]]).astype("<i8").data)
            pointer = int(ends[-1])
        for start in range(0, self.documents + 1, BLOCK):
            index.write(np.arange(start, min(start + BLOCK, self.documents + 1), dtype="<i8").data)

    def _sizes(self) -> Iterator[npt.NDArray[np.int32]]:
        self._sizes_file.seek(0)
        while block := self._sizes_file.read(4 * BLOCK):
            yield np.frombuffer(block, dtype="<i4")


@contextlib.contextmanager
def shard_writer(path: Path, vocabulary_size: int) -> Iterator[ShardWriter]:
    """Write `path` (a .bin) and its .idx; both appear when the block ends without an error.

    An unnamed temporary file holds the sizes of documents, so memory does not grow with the shard. An earlier sidecar is
    removed before the files change.
    """
    with atomic_file(path) as tokens, atomic_file(index_of(path)) as index:
        with tempfile.TemporaryFile(dir=path.parent) as sizes:
            writer = ShardWriter(path, vocabulary_size, tokens, index, sizes)
            yield writer
            writer.write_index()
        flush_all(tokens, index)
        sidecar_of(path).unlink(missing_ok=True)


def flush_all(*files: IO[Any]) -> None:
    """Flush files that appear together, so that a full disk fails here, before one of them gets its name."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())


class TokenStream:
    """The tokens of several memory-mapped shards as one sequence."""

    def __init__(self, manifest: Path, shards: Sequence[Shard], check_content: bool = True) -> None:
        """Open the shards; `check_content` compares each sha256 with the manifest, otherwise only the size."""
        self._shards = [_open_shard(manifest, shard, check_content) for shard in shards if shard.tokens]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of each shard that has any."""
        return [len(shard) for shard in self._shards]

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return tokens `start` to `stop` (excluded) as int64; fewer where the stream ends."""
        start, stop = max(start, 0), min(stop, len(self))
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
        pieces = [
            self._shards[number][max(start - self._starts[number], 0) : stop - self._starts[number]]
            for number in range(first, last + 1)
        ]
        return np.concatenate(pieces, dtype=np.int64)

    def windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Return (windows, length) int64, the `length` tokens from each start on; all must be inside the stream."""
        windows = np.empty((len(starts), length), dtype=np.int64)
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        offsets = starts - self._starts[numbers]
        # As plain arrays: each slice of a memmap would be a memmap, which takes longer to make.
        shards: list[npt.NDArray[np.integer]] = [shard.view(np.ndarray) for shard in self._shards]
        # A slice for each row: a gather of all rows of a shard is faster for few shards and many short rows, but up to ten
        # times slower where most rows are in different shards.
        for window, start, number, offset in zip(windows, starts.tolist(), numbers.tolist(), offsets.tolist(), strict=True):
            tokens = shards[number][offset : offset + length]
            window[:] = tokens if len(tokens) == length else self.tokens(start, start + length)
        return windows


def _open_shard(manifest: Path, shard: Shard, check_content: bool) -> npt.NDArray[np.integer]:
    path = require_shard(manifest, shard, check_content)
    tokens: npt.NDArray[np.integer] = np.memmap(path, dtype=DTYPES[shard.dtype][0], mode="r")
    if len(tokens) != shard.tokens:
        raise RelmError(
            f"{path}: has {len(tokens):,} {shard.dtype} tokens, but {manifest} says {shard.tokens:,}; {AGAIN_SHARD}"
        )
    return tokens
