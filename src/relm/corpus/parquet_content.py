"""The content of a small Parquet file, such as a published test, as one table."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from relm.errors import RelmError

# The first bytes of a Parquet file.
PARQUET = b"PAR1"


def parse_parquet(content: bytes, name: str) -> pa.Table:
    """Return the table in a Parquet file.

    Args:
        content: the file.
        name: its name, for messages.

    Raises:
        RelmError: it is truncated, damaged or not Parquet.
    """
    try:
        return pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RelmError(f"{name}: cannot be read as a parquet file ({error}); download it again") from None
