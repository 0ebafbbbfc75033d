"""The columns of tables of examples: names, types and widths, for Arrow and for numpy."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relm.errors import RelmError

FACTS = b"relm"
AGAIN = "delete it and its sidecar, and make it again"

Kind = Literal["uint16", "int32", "int8", "bool", "float32"]
Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
ARROW: dict[Kind, pa.DataType] = {
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "int8": pa.int8(),
    "bool": pa.bool_(),
    "float32": pa.float32(),
}
KINDS: dict[pa.DataType, Kind] = {arrow: kind for kind, arrow in ARROW.items()}


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    """Type of its values."""
    width: int | Literal["ragged"] | None = None
    """Values in a row; None: one; ragged: any count."""
    below: int | None = None
    """Exclusive limit of values, such as the vocabulary's size; None: all values that the kind can hold."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return numpy's type of its values."""
        return np.dtype(self.kind).newbyteorder("<")

    @property
    def field(self) -> pa.Field:
        """Return Arrow's description of the column."""
        value = pa.field("item", ARROW[self.kind], nullable=False)
        if self.width is None:
            return pa.field(self.name, ARROW[self.kind], nullable=False)
        kind = pa.list_(value) if self.width == "ragged" else pa.list_(value, self.width)
        return pa.field(self.name, kind, nullable=False)


class Ragged(NamedTuple):
    """Rows of different lengths: their concatenated values, and the length of each row."""

    values: Array
    sizes: Integers


def described(schema: pa.Schema, path: Path) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return the facts and columns in a table's schema; `path` is for the error message."""
    metadata = schema.metadata or {}
    if FACTS not in metadata:
        raise RelmError(f"{path}: its schema lacks the key {FACTS.decode()}, so another program wrote it; {AGAIN}")
    columns = {}
    for field in schema:
        value, width = field.type, None
        if pa.types.is_fixed_size_list(field.type):
            value, width = field.type.value_type, field.type.list_size
        elif pa.types.is_list(field.type):
            value, width = field.type.value_type, "ragged"
        if value not in KINDS or field.nullable:
            kind = f"{field.type}{' with nulls' if field.nullable else ''}"
            raise RelmError(f"{path}: column {field.name} has the type {kind}, which relm does not write; {AGAIN}")
        columns[field.name] = Column(field.name, KINDS[value], width)
    return json.loads(metadata[FACTS]), columns
