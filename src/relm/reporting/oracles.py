"""Step-by-step comparisons of training with the original programs, read from docs/oracles.json.

`tests/oracles/compare.py` measures and writes them, and a test keeps them true.
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
    """The largest differences between relm and an original program, from the same weights and batches, at twin size."""

    name: str
    original: str
    """OWNER/NAME on GitHub, and its file."""
    commit: str
    recipes: Sequence[str]
    steps: int
    loss: float
    """The largest relative difference of a step."""
    gradient_norm: float
    """The largest relative difference of a step."""
    weights: float
    """The largest absolute difference of a weight after the last step."""
    note: str = ""
    """A sentence on what the comparison leaves out or replaces."""


def format_difference(value: float) -> str:
    """Return a difference with two digits.

    >>> format_difference(2.24e-7), format_difference(0.0)
    ('2.2e-7', '0')
    """
    return f"{value:.1e}".replace("e-0", "e-") if value else "0"


def read_oracles() -> list[MeasuredOracle]:
    """Return the comparisons; none if relm is installed without its documentation."""
    return [MeasuredOracle(**row) for row in json.loads(TABLE.read_text())["originals"]] if TABLE.exists() else []


def describe_oracles(name: str) -> list[str]:
    """Return a sentence on each comparison of a recipe; none for a smoke twin or a variation."""
    run = RunName.parse(name)
    if run.is_twin or run.published.settings:
        return []
    return [
        f"Training equals the original program ({oracle.original} at {oracle.commit[:8]}) for {oracle.steps} steps at "
        f"twin size: largest difference {format_difference(max(oracle.loss, oracle.gradient_norm, oracle.weights))}"
        for oracle in read_oracles()
        if run.recipe in oracle.recipes
    ]
