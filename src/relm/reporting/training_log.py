"""Read the training logs of a finished run as arrays, for its charts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relm.errors import RelmError
from relm.recipes.run_folder import COLUMNS, RESUMED_AFTER
from relm.training.attested_hashes import read_lines

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Log:
    """The rows of one or several train.jsonl that have a loss; arrays of shape (rows,)."""

    steps: Curve
    """Optimizer steps, counted on over the phases."""
    columns: Mapping[str, Curve]
    """Maps each of `COLUMNS` to its values."""
    starts: Mapping[str, float]
    """The step at which each phase begins."""
    interruptions: tuple[float, ...] = ()
    """The steps after which training was resumed."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The wall time of each phase that logged it."""

    @property
    def losses(self) -> Curve:
        """Nats per token."""
        return self.columns["loss"]

    @property
    def total_seconds(self) -> float | None:
        """The wall time of all phases; None if one did not log it."""
        return sum(self.seconds.values()) if len(self.seconds) == len(self.starts) else None


def read_log(logs: Mapping[str, Path]) -> Log:
    """Return the rows with a loss of all phases in sequence."""
    tables: list[Curve] = []
    starts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    interruptions: list[float] = []
    begin = 0.0
    for phase, path in logs.items():
        rows = [row for row in read_lines(path) if row.get("loss") is not None]
        if not rows:
            raise RelmError(f"{path}: no line has a step and a loss; delete the folder of phase {phase} and train again")
        tables.append(np.array([(begin + row["step"], *_values(row)) for row in rows], dtype=np.float64))
        interruptions += [begin + row[RESUMED_AFTER] for row in rows if RESUMED_AFTER in row]
        if "seconds" in rows[-1]:
            seconds[phase] = float(rows[-1]["seconds"])
        starts[phase] = begin
        begin += rows[-1]["step"]
    steps_of_all, *columns = np.concatenate(tables).T
    return Log(steps_of_all, dict(zip(COLUMNS, columns, strict=True)), starts, tuple(interruptions), seconds)


def _values(row: Mapping[str, Any]) -> Iterator[float]:
    """Yield the value of each column; NaN for a missing one."""
    for column in COLUMNS:
        value = row.get(column)
        yield np.nan if value is None else float(value)
