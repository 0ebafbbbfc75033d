"""Loss curves made for tests: files of `recipes/curves/`, and runs that follow a formula."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HEAD = """\
# A run for tests
# source: nowhere
# commit: 0000000
# path: none
# licence: MIT
# smoothing: none
"""
PEAK, WARM_UP = 1e-3, 20


def write_curve(path: Path, columns: Mapping[str, Sequence[Any]], head: str = HEAD) -> Path:
    """Write a curve of these columns, of which `step` may be left out."""
    length = len(next(iter(columns.values())))
    columns = {"step": range(1, length + 1), **columns}
    rows = ["\t".join(columns), *("\t".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + "\n".join(rows) + "\n")
    return path


def made_run(seed: int, steps: int = 200, factor: float = 1.0, warms_up: bool = True) -> list[dict[str, float]]:
    """Return the lines of a run whose loss is a function of the sum of its effective learning rates, and noise.

    Args:
        factor: the effective learning rate over the logged one.
    """
    generator = np.random.default_rng(seed)
    logged = np.minimum(np.arange(1, steps + 1) / WARM_UP, 1.0) * PEAK
    effective = factor * (logged if warms_up else np.full(steps, PEAK))
    sums = np.concatenate([[0.0], np.cumsum(effective)[:-1]])
    losses = 3 + 2 * np.exp(-sums / 0.02) + 0.03 * generator.standard_normal(steps) + 0.01 * generator.standard_normal()
    norms = np.exp(0.1 * generator.standard_normal(steps))
    columns = zip(losses.tolist(), logged.tolist(), norms.tolist(), strict=True)
    return [
        {"step": step, "loss": loss, "learning_rate": rate, "gradient_norm": norm, "tokens_per_second": 1.0}
        for step, (loss, rate, norm) in enumerate(columns, 1)
    ]


def write_made_curve(path: Path, runs: int = 10, steps: int = 200) -> Path:
    """Write the curve of made runs, with all repetitions."""
    each = [made_run(seed, steps) for seed in range(1, runs + 1)]
    losses = np.array([[line["loss"] for line in run] for run in each])
    norms = np.array([[line["gradient_norm"] for line in run] for run in each])
    columns: dict[str, Any] = {
        "loss": losses.mean(axis=0).round(4),
        "learning_rate": [line["learning_rate"] for line in each[0]],
        "gradient_norm": np.exp(np.log(norms).mean(axis=0)).round(4),
    }
    columns |= {f"loss_{number}": run.round(4) for number, run in enumerate(losses, 1)}
    columns |= {f"gradient_norm_{number}": run.round(4) for number, run in enumerate(norms, 1)}
    return write_curve(path, columns)
