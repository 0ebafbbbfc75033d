"""A table with a column of each kind, whose values follow only from the index of their row."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from relm.examples.table import Column, ExampleTable, table_writer

COLUMNS = (
    Column("input_ids", "uint16", 5),
    Column("wide_ids", "int32", 3),
    Column("length", "uint16"),
    Column("label", "int8"),
    Column("starts", "bool", 5),
    Column("aligned", "bool", 16),
    Column("flag", "bool"),
    Column("source", "uint16", "ragged"),
    Column("target", "int32", "ragged"),
)


def rows_of(count: int, first: int = 0) -> dict[str, Any]:
    """Return rows whose values follow only from their index."""
    number = np.arange(first, first + count)
    place = number[:, None] * 7
    sizes = number % 4
    steps = np.concatenate([np.arange(size) for size in sizes] or [[]]).astype(np.int64)
    return {
        "input_ids": (place + np.arange(5)) % 60_000,
        "wide_ids": place * 1000 + np.arange(3),
        "length": number % 5,
        "label": number % 3 - 1,
        "starts": (place + np.arange(5)) % 3 == 0,
        "aligned": (place + np.arange(16)) % 5 == 0,
        "flag": number % 2 == 0,
        "source": (np.repeat(number, sizes) % 1000 + steps, sizes),
        "target": (np.repeat(number, (sizes + 1) % 4) * 70_000 % 10**9, (sizes + 1) % 4),
    }


def written(path: Path, count: int, cuts: list[int] | None = None, first: int = 0, **facts: Any) -> ExampleTable:
    edges = [0, *(cuts or []), count]
    with table_writer(path, COLUMNS, facts) as writer:
        for start, stop in itertools.pairwise(edges):
            writer.append(rows_of(stop - start, first + start))
    assert writer.rows == count
    return ExampleTable(path)


def as_lists(ragged: Any) -> list[list[int]]:
    return [piece.tolist() for piece in np.split(ragged[0], np.cumsum(ragged[1])[:-1])]
