"""The step-for-step comparisons of training with original programs, read from docs/oracles.json.

`tests/oracles/compare.py` measures and writes them; a test keeps them true.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import relm
from relm.recipes.run_name import RunName

TABLE = Path(relm.__file__).resolve().parents[2] / "docs" / "oracles.json"


@dataclass(frozen=True)
class MeasuredOracle:
    """The largest differences between relm and an original's own program, from the same weights and batches, at twin size."""

    name: str
    original: str
    """The original's program: OWNER/NAME on GitHub, and its file."""
    commit: str
    recipes: Sequence[str]
    """The recipes that it stands for."""
    steps: int
    loss: float
    """The largest relative difference of a step's loss."""
    gradient_norm: float
    """The largest relative difference of a step's gradient norm."""
    weights: float
    """The largest absolute difference of a weight after the last step."""
    note: str = ""
    """A sentence on what the comparison leaves out or replaces; empty: nothing."""

    def describe(self) -> str:
        """Return a sentence on the comparison.

        >>> MeasuredOracle("a", "b/c, train.py", "0123456789", [], 100, 2.2e-7, 1e-7, 1.2e-7).describe()
        'Training equals the original program (b/c, train.py at 01234567) for 100 steps at twin size: largest difference 2.2e-7'
        """
        largest = format_difference(max(self.loss, self.gradient_norm, self.weights))
        return (
            f"Training equals the original program ({self.original} at {self.commit[:8]}) for {self.steps} steps at twin size: "
            f"largest difference {largest}"
        )


def format_difference(value: float) -> str:
    """Return a difference with two digits.

    >>> format_difference(2.24e-7), format_difference(0.0)
    ('2.2e-7', '0')
    """
    return f"{value:.1e}".replace("e-0", "e-") if value else "0"


def read_oracles(path: Path | None = None) -> list[MeasuredOracle]:
    """Return the comparisons of a file, docs/oracles.json by default; none where relm is installed without documentation."""
    path = path or TABLE
    if not path.exists():
        return []
    return [MeasuredOracle(**row) for row in json.loads(path.read_text(encoding="utf-8"))["originals"]]


def describe_oracles(name: str, path: Path | None = None) -> list[str]:
    """Return a sentence on each comparison that stands for a run's recipe; none for a smoke twin or a variation.

    Args:
        name: the run's, such as NAME@MACHINE.
    """
    run = RunName.parse(name)
    return (
        []
        if run.is_twin or run.published.settings
        else [oracle.describe() for oracle in read_oracles(path) if run.recipe in oracle.recipes]
    )
