"""Write tables of examples in Arrow's IPC file format, and memory-map them for reading.

Of Arrow's two layouts this is the *file*: its footer has the offset of each record batch, so any row can be read without the
rows before it, unlike in the *stream* layout. All record batches except the last have `ROWS` rows, so row i is in batch
i // ROWS; nothing is compressed, so a column of a batch is an array inside the memory-mapped file. The schema's metadata has
one key, `relm`: the facts of the table as canonical JSON. Columns have no nulls. (Arrow columnar format 1.x, section
"Serialization and interprocess communication".)

The file has no times and versions, so one version of pyarrow writes the same bytes for the same rows. Another version may lay
out the same table differently.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relm.artifact import atomic_file, canonical_json, sidecar_of
from relm.errors import RelmError
from relm.examples.columns import AGAIN, ARROW, FACTS, Array, Column, Integers, Ragged, described
from relm.examples.contract import require_indices

ROWS = 4096

__all__ = ["ROWS", "Column", "ExampleTable", "Ragged", "TableWriter", "table_writer"]


class TableWriter:
    """Writes rows to a table; `table_writer` opens it."""

    def __init__(self, path: Path, columns: Sequence[Column], facts: Mapping[str, Any], file: IO[bytes]) -> None:
        self.path = path
        self.columns = {column.name: column for column in columns}
        self.rows = 0
        """Number of rows so far."""
        self._schema = pa.schema([c.field for c in columns], metadata={FACTS: canonical_json(dict(facts)).encode()})
        self._writer = pa.ipc.new_file(file, self._schema)
        self._waiting: dict[str, list[Any]] = {name: [] for name in self.columns}
        self._waiting_rows = 0

    def append(self, rows: Mapping[str, Any]) -> None:
        """Append rows; how calls divide them changes no byte.

        `rows` has an array for every column: (rows,) if its width is None, (rows, width), or for ragged columns a tuple of
        values (values,) and sizes (rows,).
        """
        if set(rows) != set(self.columns):
            raise ValueError(f"expected the columns {', '.join(self.columns)}; found {', '.join(rows)}")
        given = {name: self._checked(column, rows[name]) for name, column in self.columns.items()}
        counts = {_row_count(value) for value in given.values()}
        if len(counts) != 1:
            raise ValueError(f"columns have different numbers of rows: {sorted(counts)}")
        total, start = counts.pop(), 0
        while start < total:
            stop = min(total, start + ROWS - self._waiting_rows)
            for name, value in given.items():
                self._waiting[name].append(_copied(value, start, stop))
            self._waiting_rows += stop - start
            start = stop
            if self._waiting_rows == ROWS:
                self._write_batch()
        self.rows += total

    def finish(self) -> None:
        """Write the last rows and the footer."""
        if self._waiting_rows:
            self._write_batch()
        self._writer.close()

    def _write_batch(self) -> None:
        arrays = [_arrow(column, self._waiting[name], self.path) for name, column in self.columns.items()]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._waiting = {name: [] for name in self.columns}
        self._waiting_rows = 0

    def _checked(self, column: Column, value: Any) -> Any:
        """Return the value in the column's type, after checking its shape and range."""
        values = np.asarray(value[0] if column.width == "ragged" else value)
        sizes = np.asarray(value[1], dtype=np.int64) if column.width == "ragged" else None
        expected = (column.width,) if isinstance(column.width, int) else ()
        if values.ndim != 1 + len(expected) or values.shape[1:] != expected:
            raise ValueError(f"{column.name}: expected shape {('rows', *expected)}, found {values.shape}")
        if sizes is not None and (int(sizes.sum()) != len(values) or (len(sizes) and int(sizes.min()) < 0)):
            raise ValueError(f"{column.name}: sizes sum to {sizes.sum()}, but there are {len(values)} values")
        self._require_range(column, values, sizes)
        converted = values.astype(column.dtype, copy=False)
        return converted if sizes is None else Ragged(converted, sizes)

    def _require_range(self, column: Column, values: Array, sizes: Integers | None) -> None:
        if column.kind in ("bool", "float32") or not values.size:
            return
        limits = np.iinfo(column.kind)
        low, high = (int(limits.min), int(limits.max)) if column.below is None else (0, column.below - 1)
        if low <= int(values.min()) and int(values.max()) <= high:
            return
        index = int(np.flatnonzero((values.ravel() < low) | (values.ravel() > high))[0])
        found = values.ravel()[index]
        row = index // (values.size // len(values)) if sizes is None else np.searchsorted(np.cumsum(sizes), index, "right")
        raise RelmError(
            f"{self.path}: row {self.rows + int(row):,}: {column.name}: expected {low} to {high}, found {found}: "
            "tokenizer and examples disagree; make them again"
        )


@contextlib.contextmanager
def table_writer(path: Path, columns: Sequence[Column], facts: Mapping[str, Any]) -> Iterator[TableWriter]:
    """Write the table `path`, which appears when the block ends without an error; `facts` are JSON values to store in it.

    At most `ROWS` rows are in memory. An earlier sidecar is removed before the file changes.
    """
    with atomic_file(path) as file:
        writer = TableWriter(path, columns, facts, file)
        yield writer
        writer.finish()
        sidecar_of(path).unlink(missing_ok=True)


def _row_count(value: Any) -> int:
    return len(value.sizes) if isinstance(value, Ragged) else len(np.asarray(value))


def _copied(value: Any, start: int, stop: int) -> Any:
    """Return a copy of some rows, because the caller may reuse the array."""
    if not isinstance(value, Ragged):
        return value[start:stop].copy()
    first, last = int(value.sizes[:start].sum()), int(value.sizes[:stop].sum())
    return Ragged(value.values[first:last].copy(), value.sizes[start:stop].copy())


def _arrow(column: Column, pieces: list[Any], path: Path) -> pa.Array:
    if column.width != "ragged":
        values = pa.array(np.concatenate(pieces).ravel(), type=ARROW[column.kind])
        return values if column.width is None else pa.FixedSizeListArray.from_arrays(values, type=column.field.type)
    values = np.concatenate([piece.values for piece in pieces])
    ends = np.cumsum(np.concatenate([piece.sizes for piece in pieces]))
    if len(values) >= 2**31:
        raise RelmError(
            f"{path}: {column.name}: {ROWS} rows have {len(values):,} values, but the format holds 2**31; split the rows"
        )
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values, type=ARROW[column.kind]), type=column.field.type)


class ExampleTable:
    """One memory-mapped table. Opening reads its footer only; a batch's offset is looked up when it is first needed."""

    facts: dict[str, Any]
    """The facts given to the writer."""
    columns: dict[str, Column]

    def __init__(self, path: Path) -> None:
        """Open a whole table that relm wrote."""
        self.path = path
        if not path.exists():
            raise RelmError(f"{path}: no such file; make it first")
        self._file, self._reader = _open_file(path)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._file, dtype=np.uint8)
        self.facts, self.columns = described(self._reader.schema, path)
        self.batches: int = self._reader.num_record_batches
        """Number of record batches."""
        self._slots = {name: 2 * number for number, name in enumerate(self.columns)}
        self._offsets = np.full((self.batches, 2 * len(self.columns)), -1, dtype=np.int64)
        last = self._batch(self.batches - 1).num_rows if self.batches else 0
        self._rows: int = ROWS * max(self.batches - 1, 0) + last

    def __len__(self) -> int:
        return self._rows

    def rows(self, name: str, indices: npt.NDArray[np.integer]) -> Any:
        """Return a copy of a column's rows with these indices, in any order, repeats allowed.

        The result is (rows,) or (rows, width) in the column's type, or `Ragged`.
        """
        column, slot = self.columns[name], self._slots[name]
        require_indices(indices, len(self))
        batches, rows = np.divmod(np.asarray(indices, dtype=np.int64), ROWS)
        self._locate(batches)
        offsets = self._offsets[batches, slot]
        if column.width == "ragged":
            return self._ragged(column, offsets, self._offsets[batches, slot + 1], rows)
        width = column.width or 1
        if column.kind == "bool":
            found = _bits(self._bytes, offsets, rows * width, width)
        else:
            elements = self._elements(column.dtype)
            found = _windows(elements, width)[offsets // column.dtype.itemsize + rows * width]
        return found[:, 0] if column.width is None else found

    def _ragged(self, column: Column, ends_at: Integers, values_at: Integers, rows: Integers) -> Ragged:
        ends = self._elements(np.dtype("<i4"))
        first = ends_at // 4 + rows
        begin, stop = ends[first].astype(np.int64), ends[first + 1].astype(np.int64)
        sizes = stop - begin
        starts = values_at // column.dtype.itemsize + begin
        shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        return Ragged(self._elements(column.dtype)[shifts + np.arange(len(shifts))], sizes)

    def _elements(self, dtype: np.dtype[Any]) -> Array:
        """Return the whole file as values of a type; Arrow aligns every buffer for it."""
        return self._bytes[: len(self._bytes) // dtype.itemsize * dtype.itemsize].view(dtype)

    def _locate(self, batches: Integers) -> None:
        """Look up the offsets of columns in these batches, unless known."""
        for number in np.unique(batches[self._offsets[batches, 0] < 0]).tolist():
            batch = self._batch(number)
            if batch.num_rows != min(ROWS, len(self) - number * ROWS):
                raise RelmError(f"{self.path}: record batch {number} has {batch.num_rows} rows, expected {ROWS}; {AGAIN}")
            found = np.empty(2 * len(self.columns), dtype=np.int64)
            for name, slot in self._slots.items():
                buffers = batch.column(name).buffers()
                ragged = self.columns[name].width == "ragged"
                found[slot] = self._offset(buffers[1] if ragged else buffers[-1])
                found[slot + 1] = self._offset(buffers[-1])
            self._offsets[number, 1:] = found[1:]
            self._offsets[number, 0] = found[0]  # last: it shows other threads that all are known

    def _batch(self, number: int) -> pa.RecordBatch:
        try:
            return self._reader.get_batch(number)
        except (pa.ArrowException, OSError) as error:
            raise RelmError(f"{self.path}: damaged: record batch {number} cannot be read ({error}); {AGAIN}") from None

    def _offset(self, buffer: pa.Buffer | None) -> int:
        if buffer is None or not buffer.size:
            return 0
        offset = int(buffer.address - self._file.address)
        if not 0 <= offset <= self._file.size - buffer.size:
            raise RelmError(f"{self.path}: its columns are compressed; {AGAIN}")
        return offset


def _windows(elements: Array, width: int) -> Array:
    """Return (n - width + 1, width), a view of the `width` elements from each index on."""
    if len(elements) < width:
        return np.empty((0, width), dtype=elements.dtype)
    step = elements.itemsize
    return np.lib.stride_tricks.as_strided(elements, (len(elements) - width + 1, width), (step, step), writeable=False)


def _bits(content: npt.NDArray[np.uint8], offsets: Integers, starts: Integers, width: int) -> npt.NDArray[np.bool_]:
    """Return (rows, width), bits `start` to `start + width` of the bits from byte `offset` on, the lowest of a byte first."""
    aligned = width % 8 == 0
    size = width // 8 if aligned else width // 8 + 2
    unpacked = np.unpackbits(_windows(content, size)[offsets + starts // 8], axis=1, bitorder="little").view(bool)
    if aligned:
        return unpacked
    found = np.empty((len(starts), width), dtype=bool)
    for shift in range(8):  # rows that begin at the same bit of a byte share a slice
        rows = starts % 8 == shift
        found[rows] = unpacked[rows, shift : shift + width]
    return found


def _open_file(path: Path) -> tuple[pa.Buffer, pa.ipc.RecordBatchFileReader]:
    try:
        with pa.memory_map(str(path)) as file:
            content = file.read_buffer()
        return content, pa.ipc.open_file(content)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RelmError(f"{path}: truncated, or not an Arrow file ({error}); {AGAIN}") from None
