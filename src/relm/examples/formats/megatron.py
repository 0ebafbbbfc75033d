"""Megatron-LM's indexed files as other programs write them: any integer type, several sequences a document.

`NAME.idx` is nine bytes of magic, version (uint64), type code (uint8), the counts of sequences and of document boundaries
(uint64 each), then sizes of sequences in tokens (int32), their byte offsets in `NAME.bin` (int64) and the sequence at which
each document begins, with the end (int64) (megatron/core/datasets/indexed_dataset.py). Files of this project have one sequence
a document; `relm.examples.storage` writes them.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.storage import MAGIC, VERSION, index_of

Integers = npt.NDArray[np.int64]

HEADER = len(MAGIC) + 8 + 1 + 8 + 8
INTEGER_TYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# Tokens that are read at once, in whole documents; sequences whose offsets are compared at once.
BLOCK = 2**20
AGAIN = "copy both files again, or make them again"


@dataclass(frozen=True)
class IndexedFile:
    """A pair of `.bin` and `.idx`, memory-mapped."""

    path: Path
    """The path of the `.bin`."""
    tokens: npt.NDArray[Any]
    sizes: npt.NDArray[np.int32]
    """(sequences,), in tokens."""
    offsets: Integers
    """(sequences,), in bytes."""
    boundaries: Integers
    """(documents + 1,), the sequence at which each document begins, and the count of sequences."""

    @property
    def documents(self) -> int:
        """The count of documents."""
        return len(self.boundaries) - 1

    def starts(self, first: int, last: int) -> Integers:
        """Return where documents `first` to `last`, both included, begin in `tokens`; for the one after the last, the end."""
        sequences = np.asarray(self.boundaries[first : last + 1])
        starts = np.full(len(sequences), len(self.tokens), dtype=np.int64)
        inside = sequences < len(self.offsets)
        starts[inside] = self.offsets[sequences[inside]] // self.tokens.itemsize
        return starts

    def blocks(self) -> Iterator[tuple[int, Integers, Integers]]:
        """Yield all documents in order, in blocks: the number of the first, their tokens in sequence, and the size of each."""
        first = 0
        while first < self.documents:
            starts = self.starts(first, min(first + BLOCK, self.documents))
            count = max(1, int(np.searchsorted(starts, starts[0] + BLOCK, side="right")) - 1)
            yield first, self.tokens[starts[0] : starts[count]].astype(np.int64), np.diff(starts[: count + 1])
            first += count


def open_indexed(path: Path) -> IndexedFile:
    """Open `NAME.bin` and `NAME.idx`, given either, or NAME alone."""
    shard = path if path.suffix == ".bin" else path.with_suffix(".bin") if path.suffix == ".idx" else Path(f"{path}.bin")
    index = index_of(shard)
    for file in (shard, index):
        if not file.exists():
            raise RelmError(f"{file}: no such file; {index.name} and {shard.name} belong together")
    code, sizes, offsets, boundaries = _read_index(index)
    total = int(sizes.sum(dtype=np.int64))
    if code not in INTEGER_TYPES:
        raise RelmError(f"{index}: type code {code}, expected one of {', '.join(map(str, INTEGER_TYPES))}; {AGAIN}")
    tokens = _map_values(shard, INTEGER_TYPES[code], 0, None)
    if len(tokens) != total:
        raise RelmError(
            f"{shard}: holds {len(tokens):,} tokens, {index.name} says {total:,}: truncated or another file; {AGAIN}"
        )
    if (size := shard.stat().st_size) != total * tokens.itemsize:
        raise RelmError(
            f"{shard}: has {size:,} bytes, {index.name} says {total:,} tokens of {tokens.itemsize}: another file; {AGAIN}"
        )
    opened = IndexedFile(shard, tokens, sizes, offsets, boundaries)
    _require_order(opened, index)
    return opened


def _read_index(index: Path) -> tuple[int, npt.NDArray[np.int32], Integers, Integers]:
    size = index.stat().st_size
    with open(index, "rb") as file:
        header = file.read(HEADER)
    if header[: len(MAGIC)] != MAGIC or len(header) < HEADER:
        raise RelmError(
            f"{index}: begins with {header[: len(MAGIC)]!r}, expected {MAGIC!r}: not an index of Megatron-LM; {AGAIN}"
        )
    version, code, sequences, boundaries = struct.unpack("<QBQQ", header[len(MAGIC) :])
    if version != VERSION:
        raise RelmError(f"{index}: version {version}, expected {VERSION}; write it with a version of Megatron-LM that has that")
    needed = HEADER + 12 * sequences + 8 * boundaries
    if size != needed:
        raise RelmError(
            f"{index}: has {size:,} bytes, {sequences:,} sequences and {boundaries:,} boundaries need {needed:,}: "
            f"truncated; {AGAIN}"
        )
    return (
        code,
        _map_values(index, "<i4", HEADER, sequences),
        _map_values(index, "<i8", HEADER + 4 * sequences, sequences),
        _map_values(index, "<i8", HEADER + 12 * sequences, boundaries),
    )


def _map_values(path: Path, dtype: str, offset: int, count: int | None) -> npt.NDArray[Any]:
    """Return values mapped from a file; an incomplete value at its end is left out."""
    if count is None:
        count = (path.stat().st_size - offset) // np.dtype(dtype).itemsize
    if not count:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,)).view(np.ndarray)


def _require_order(opened: IndexedFile, index: Path) -> None:
    """Raise RelmError for an index whose sequences are not adjacent, or whose documents are not ranges of them."""
    expected = 0
    for first in range(0, len(opened.sizes), BLOCK):
        sizes = opened.sizes[first : first + BLOCK]
        ends = expected + np.cumsum(sizes, dtype=np.int64) * opened.tokens.itemsize
        starts = np.concatenate([[expected], ends[:-1]])
        wrong = np.flatnonzero((starts != opened.offsets[first : first + BLOCK]) | (sizes < 0))
        if len(wrong):
            sequence = first + int(wrong[0])
            raise RelmError(
                f"{index}: sequence {sequence:,} has {opened.sizes[sequence]:,} tokens at byte "
                f"{opened.offsets[sequence]:,}, expected at byte {starts[wrong[0]]:,}: damaged; {AGAIN}"
            )
        expected = int(ends[-1])
    bounds = opened.boundaries
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(opened.sizes) or (np.diff(bounds) < 0).any():
        raise RelmError(f"{index}: its documents do not cover its {len(opened.sizes):,} sequences in order: damaged; {AGAIN}")
