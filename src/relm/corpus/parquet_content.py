"""Read a small Parquet file, such as a published test, as columns of Python values."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from relm.corpus.published_rows import find_repeated, require_proportion
from relm.errors import RelmError

# The first bytes of a Parquet file.
PARQUET = b"PAR1"
# Rows to unpack at once: few, because each may be a reference to one long text in a dictionary.
ROWS = 64


def parse_parquet(content: bytes, name: str) -> dict[str, list[Any]]:
    """Return the columns of a Parquet file; `name` is the file's, for messages.

    Raises RelmError if it is truncated, damaged or not Parquet, has a name twice, or unpacks out of proportion.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            schema, metadata = file.schema_arrow, file.metadata
            _require_different_names(schema, name)
            stated = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            require_proportion(stated, len(content), name)
            columns: dict[str, list[Any]] = {column: [] for column in schema.names}
            size = 0
            for batch in file.iter_batches(ROWS):
                require_proportion(size := size + batch.nbytes, len(content), name)
                for column, values in zip(columns, batch.columns, strict=True):
                    columns[column] += values.to_pylist()
    except (pa.ArrowException, OSError, ValueError, ArithmeticError, LookupError, MemoryError, RecursionError) as error:
        reason = str(error).split("\n")[0]
        raise RelmError(f"{name}: damaged, or not Parquet ({reason:.200}); download it again") from None
    return columns


def _require_different_names(fields: Iterable[pa.Field], name: str) -> None:
    """Raise RelmError if two columns, or two fields of a structure, share a name."""
    fields = list(fields)
    if (double := find_repeated(field.name for field in fields)) is not None:
        raise RelmError(f"{name}: has the column {double!r:.80} twice; give a file in which each name occurs once")
    for field in fields:
        _require_different_names((field.type.field(n) for n in range(field.type.num_fields)), name)
