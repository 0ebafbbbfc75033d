import resource
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from table_rows import COLUMNS, as_lists, rows_of, written

from relm.artifact import sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples import table
from relm.examples.table import Column, ExampleTable, Ragged, table_writer


@pytest.mark.usefixtures("small_batches")
def test_any_rows_are_read_in_the_requested_order(tmp_path) -> None:
    opened = written(tmp_path / "a.table", 29)
    assert (len(opened), opened.batches) == (29, 4)
    indices = np.array([28, 0, 7, 8, 8, 15, 27, 3])
    expected = rows_of(29)
    for column in COLUMNS:
        found = opened.rows(column.name, indices)
        if column.width == "ragged":
            assert isinstance(found, Ragged)
            assert found.values.dtype == column.dtype
            assert as_lists(found) == [as_lists(expected[column.name])[index] for index in indices]
        else:
            assert found.dtype == column.dtype
            assert found.tolist() == expected[column.name][indices].tolist()


@pytest.mark.usefixtures("small_batches")
def test_bytes_do_not_depend_on_how_rows_are_cut(tmp_path) -> None:
    whole = written(tmp_path / "whole.table", 29).path.read_bytes()
    for cuts in ([1], [8], [7, 9], [16], [3, 3, 20], list(range(1, 29))):
        assert written(tmp_path / "cut.table", 29, cuts).path.read_bytes() == whole


@pytest.mark.usefixtures("small_batches")
def test_arrow_reads_the_file_without_us(tmp_path) -> None:
    written(tmp_path / "a.table", 29, objective="masked", ids={"b": 1, "a": None})
    with pa.memory_map(str(tmp_path / "a.table")) as file:
        reader = pa.ipc.open_file(file)
        assert [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)] == [8, 8, 8, 5]
        read = reader.read_all()
    read.validate(full=True)
    assert read["starts"].to_pylist() == rows_of(29)["starts"].tolist()
    assert read["target"].to_pylist() == as_lists(rows_of(29)["target"])
    assert read.schema.field("input_ids").type == pa.list_(pa.field("item", pa.uint16(), nullable=False), 5)
    assert read.schema.metadata == {b"relm": b'{"ids":{"a":null,"b":1},"objective":"masked"}'}


def test_facts_and_columns_come_back(tmp_path) -> None:
    opened = written(tmp_path / "a.table", 3, objective="masked", special={"pad": 0, "mask": None})
    assert opened.facts == {"objective": "masked", "special": {"pad": 0, "mask": None}}
    assert tuple(opened.columns.values()) == COLUMNS


def test_a_table_may_be_empty(tmp_path) -> None:
    opened = written(tmp_path / "a.table", 0)
    assert (len(opened), opened.batches) == (0, 0)
    none = np.array([], dtype=np.int64)
    assert opened.rows("input_ids", none).shape == (0, 5)
    assert opened.rows("starts", none).shape == (0, 5)
    assert opened.rows("source", none).values.tolist() == []
    with pytest.raises(IndexError):
        opened.rows("input_ids", np.array([0]))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_row_that_is_not_there_is_refused(tmp_path, index) -> None:
    opened = written(tmp_path / "a.table", 3)
    with pytest.raises(IndexError, match="examples are 0 to 2"):
        opened.rows("input_ids", np.array([0, index]))


def test_the_caller_may_fill_the_same_array_again(tmp_path) -> None:
    values = np.array([[1, 2]], dtype=np.uint16)
    with table_writer(tmp_path / "a.table", [Column("ids", "uint16", 2)], {}) as writer:
        writer.append({"ids": values})
        values[:] = 9
        writer.append({"ids": values})
    assert ExampleTable(tmp_path / "a.table").rows("ids", np.array([0, 1])).tolist() == [[1, 2], [9, 9]]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (Column("ids", "uint16", 2, below=400), [[1, 2], [3, 400]], "row 4: ids: expected 0 to 399, found 400"),
        (Column("ids", "uint16", 2), [[1, 2], [-1, 3]], "row 4: ids: expected 0 to 65535, found -1"),
        (Column("ids", "uint16"), [3, 65_536], "row 4: ids: expected 0 to 65535, found 65536"),
        (Column("ids", "int32", "ragged", below=9), ([1, 2, 9], [0, 3]), "row 4: ids: expected 0 to 8, found 9"),
        (Column("ids", "int8"), [0, 128], "row 4: ids: expected -128 to 127, found 128"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_row(tmp_path, column, value, message) -> None:
    def write() -> None:
        with table_writer(tmp_path / "a.table", [column], {}) as writer:
            zeros = {None: [0] * 3, 2: [[0, 0]] * 3, "ragged": ([0], [0, 0, 1])}[column.width]
            writer.append({"ids": zeros})
            writer.append({"ids": value})

    with pytest.raises(RelmError, match=rf"a\.table: {message}"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"ids": [[1, 2]]}, "expected the columns ids, words; found ids"),
        ({"ids": [[1, 2, 3]], "words": ([1], [1])}, "ids: expected shape .*2.*, found .*1, 3"),
        ({"ids": [[1, 2]], "words": ([1], [2])}, "words: sizes sum to 2, but there are 1 values"),
        ({"ids": [[1, 2]], "words": ([1], [1, 0])}, "different numbers of rows"),
    ],
)
def test_rows_of_the_wrong_shape_are_refused(tmp_path, rows, message) -> None:
    columns = [Column("ids", "uint16", 2), Column("words", "uint16", "ragged")]
    with pytest.raises(ValueError, match=message), table_writer(tmp_path / "a.table", columns, {}) as writer:
        writer.append(rows)


def test_a_truncated_or_foreign_file_is_refused_by_name(tmp_path) -> None:
    path = written(tmp_path / "a.table", 20).path
    content = path.read_bytes()
    for size in (0, 4, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(RelmError, match=r"a\.table: truncated, or not an Arrow file"):
            ExampleTable(path)
    path.write_bytes(content[:200] + content[260:])
    with pytest.raises(RelmError, match=r"a\.table: "):
        ExampleTable(path)
    with pytest.raises(RelmError, match=r"b\.table: no such file"):
        ExampleTable(tmp_path / "b.table")


def test_another_programs_table_is_refused(tmp_path) -> None:
    def foreign(array: pa.Array, metadata: dict[bytes, bytes] | None, compression: str | None = None) -> None:
        field = pa.field("ids", array.type, nullable=False)
        batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([field], metadata=metadata))
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(str(tmp_path / "a.table"), batch.schema, options=options) as writer:
            writer.write_batch(batch)

    for array, metadata, message in (
        (pa.array([1], pa.uint16()), None, "another program wrote it"),
        (pa.array([1.5]), {b"relm": b"{}"}, "column ids has the type .*double"),
    ):
        foreign(array, metadata)
        with pytest.raises(RelmError, match=message):
            ExampleTable(tmp_path / "a.table")
    foreign(pa.array([1] * 1000, pa.uint16()), {b"relm": b"{}"}, "lz4")
    with pytest.raises(RelmError, match="compressed"):
        ExampleTable(tmp_path / "a.table").rows("ids", np.array([0]))


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path) -> None:
    def fill() -> None:
        with table_writer(tmp_path / "a.table", COLUMNS, {}) as writer:
            for _ in range(50):
                writer.append(rows_of(5000))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RelmError, match=r"a\.table: cannot be written: File too large; nothing was changed"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_new_table_removes_the_sidecar_of_the_old(tmp_path) -> None:
    written(tmp_path / "a.table", 3)
    write_sidecar(tmp_path / "a.table")
    written(tmp_path / "a.table", 4)
    assert not sidecar_of(tmp_path / "a.table").exists()


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path) -> None:
    def peak(appends: int) -> int:
        rows = {"ids": np.ones((table.ROWS, 64), dtype=np.uint16)}
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        with table_writer(tmp_path / "a.table", [Column("ids", "uint16", 64)], {}) as writer:
            for _ in range(appends):
                writer.append(rows)
        found = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before
        tracemalloc.stop()
        return found

    assert peak(64) < peak(4) + 2**20
