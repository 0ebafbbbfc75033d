"""Read rows of Parquet files."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from relm.corpus.records import RowRange, check_keys, list_keys
from relm.errors import RelmError
from relm.progress import ProgressBar
from relm.recipes.datasets import Dataset

# Bytes and rows of a table in one batch for a worker, at most.
BATCH, ROWS = 1 << 20, 4096


def batch_parquet(dataset: Dataset, path: Path) -> Iterator[RowRange]:
    """Yield the rows of a Parquet file, with only the columns that are read, a piece of a row group at a time."""
    first = 1
    try:
        # Without buffering ahead a row group is read page by page, however large it is.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BATCH) as file:
            check_keys(dataset, file.schema_arrow.names, str(path))
            with ProgressBar(total=file.metadata.num_rows, desc=path.name, unit=" rows", disable=None) as bar:
                rows = _choose_batch_rows(file.metadata)
                for table in file.iter_batches(rows, columns=list_keys(dataset), use_threads=False):
                    yield RowRange(str(path), first, table)
                    first += len(table)
                    bar.update(len(table))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0]
        raise RelmError(
            f"{path}: after row {first - 1}: truncated, damaged or not Parquet ({reason}); download it again"
        ) from None


def _choose_batch_rows(metadata: pq.FileMetaData) -> int:
    size = sum(int(metadata.row_group(number).total_byte_size) for number in range(metadata.num_row_groups))
    return max(1, min(ROWS, BATCH * int(metadata.num_rows) // max(size, 1)))
