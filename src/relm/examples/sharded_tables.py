"""Read the tables of a manifest's shards as one."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.examples.columns import AGAIN, Column, Integers, Ragged
from relm.examples.contract import require_indices
from relm.examples.manifest import Manifest, Split, read_manifest, require_shard
from relm.examples.table import ExampleTable
from relm.recipes.objectives import Objective


class ExampleTables:
    """The tables of several shards as one, by index of the row."""

    def __init__(self, manifest: Path, split: str, check_content: bool = True) -> None:
        """Open the tables of a split; `check_content` compares each sha256 with the manifest, otherwise only the size."""
        self.manifest: Manifest = read_manifest(manifest)
        self._split = split
        shards = [shard for shard in self.manifest.split(split, manifest) if shard.examples]
        self._tables = []
        for shard in shards:
            table = ExampleTable(require_shard(manifest, shard, check_content))
            if len(table) != shard.examples:
                raise RelmError(f"{table.path}: has {len(table):,} rows, but {manifest} says {shard.examples:,}; {AGAIN}")
            self._tables.append(table)
        if not self._tables:
            raise RelmError(f"{manifest}: split {split} has only empty tables; make the examples again")
        self._starts = np.cumsum([0, *(len(table) for table in self._tables)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def columns(self) -> dict[str, Column]:
        """Return the columns, which are the same in every shard."""
        return self._tables[0].columns

    @property
    def facts_of_split(self) -> Split:
        """Return the manifest's facts of all shards together."""
        return self.manifest.splits[self._split]

    def rows(self, name: str, indices: npt.NDArray[np.integer]) -> Any:
        """Return rows as `ExampleTable.rows` does, by indices over all shards."""
        require_indices(indices, len(self))
        if len(self._tables) == 1:
            return self._tables[0].rows(name, indices)
        order = np.argsort(indices, kind="stable")
        ordered = np.asarray(indices)[order]
        cuts = np.searchsorted(ordered, self._starts)
        pieces = [
            table.rows(name, ordered[first:last] - start)
            for table, start, first, last in zip(self._tables, self._starts, cuts, cuts[1:], strict=False)
            if first < last
        ]
        return _in_order(pieces, order) if pieces else self._tables[0].rows(name, indices)


def open_tables(manifest: Path, split: str, objective: Objective, check_content: bool) -> ExampleTables:
    """Open the tables of a split, which must be those of an objective."""
    tables = ExampleTables(manifest, split, check_content)
    facts = tables.manifest
    if facts.objective != objective.objective:
        raise RelmError(f"{manifest}: expected {objective.objective} examples, found {facts.objective}; pregenerate them again")
    if facts.settings and facts.settings != (wanted := objective.stored_keys()):
        raise RelmError(
            f"{manifest}: expected examples with {canonical_json(wanted)}, found {canonical_json(facts.settings)}; "
            "pregenerate them again"
        )
    return tables


def _in_order(pieces: list[Any], order: Integers) -> Any:
    """Return rows in their requested order: row i of the pieces goes to index order[i]."""
    if not isinstance(pieces[0], Ragged):
        result = np.empty((len(order), *pieces[0].shape[1:]), dtype=pieces[0].dtype)
        start = 0
        for piece in pieces:
            result[order[start : start + len(piece)]] = piece
            start += len(piece)
        return result
    values, read = np.concatenate([p.values for p in pieces]), np.concatenate([p.sizes for p in pieces])
    sizes = np.empty_like(read)
    sizes[order] = read
    starts = np.empty_like(read)
    starts[order] = np.cumsum(read) - read
    return Ragged(values[np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(values))], sizes)
