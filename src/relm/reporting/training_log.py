"""The training logs of a finished run as arrays, for its charts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relm.artifact import require_regular_file
from relm.errors import RelmError
from relm.json_shapes import COUNT, NUMBER, Kind, Nullable, require_shape
from relm.recipes.run_folder import RESUMED_AFTER

Curve = NDArray[np.float64]
# Columns of train.jsonl that are read; NaN where a line does not have one.
COLUMNS = ("loss", "validation_loss", "learning_rate", "gradient_norm", "tokens_per_second", "memory_bytes")
_VALUE = Nullable(Kind("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)))
# A loss that diverged is NaN.
_SHAPE = {"step": COUNT, **{f"{key}?": _VALUE for key in COLUMNS}, f"{RESUMED_AFTER}?": COUNT, "seconds?": NUMBER}


@dataclass(frozen=True)
class Log:
    """The rows of one or several train.jsonl that hold a loss; arrays of shape (rows,)."""

    steps: Curve
    """Optimizer steps, counted on over the phases."""
    columns: Mapping[str, Curve]
    """Maps each of `COLUMNS` to its values."""
    starts: Mapping[str, float]
    """The step at which each phase begins."""
    interruptions: tuple[float, ...] = ()
    """The steps after which training was resumed."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The wall time of each phase, as far as it was logged."""

    @property
    def losses(self) -> Curve:
        """Nats per token."""
        return self.columns["loss"]

    @property
    def total_seconds(self) -> float | None:
        """The wall time of all phases; None where one did not log it."""
        return sum(self.seconds.values()) if len(self.seconds) == len(self.starts) else None


def read_log(logs: Mapping[str, Path]) -> Log:
    """Return the training logs of all phases in sequence. Where a resumed run wrote a step again, the later row counts."""
    tables: list[Curve] = []
    starts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    interruptions: list[float] = []
    begin = 0.0
    for phase, path in logs.items():
        rows = {float(row["step"]): row for row in _read_rows(path)}
        if not rows:
            raise RelmError(f"{path}: no line has a step and a loss; delete the run's folder of phase {phase} and train again")
        steps = sorted(rows)
        tables.append(np.array([(begin + step, *_values(rows[step])) for step in steps], dtype=np.float64))
        interruptions += [begin + rows[step][RESUMED_AFTER] for step in steps if RESUMED_AFTER in rows[step]]
        if "seconds" in rows[steps[-1]]:
            seconds[phase] = float(rows[steps[-1]]["seconds"])
        starts[phase] = begin
        begin += steps[-1]
    steps_of_all, *columns = np.concatenate(tables).T
    return Log(steps_of_all, dict(zip(COLUMNS, columns, strict=True)), starts, tuple(interruptions), seconds)


def _values(row: Mapping[str, Any]) -> Iterator[float]:
    for column in COLUMNS:
        value = row.get(column)
        yield np.nan if value is None else float(value)


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each line that has a step and a loss."""
    require_regular_file(path)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise RelmError(f"{path}, line {number}: not a JSON object ({error}); was the disk full?") from None
                if isinstance(row, dict) and "step" in row and row.get("loss") is not None:
                    _require_numbers(row, f"{path}, line {number}")
                    yield row
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file; it is written while training") from None


def _require_numbers(row: Mapping[str, Any], where: str) -> None:
    require_shape(row, _SHAPE, where, "it is not what training wrote: bring the file back, or train again")
