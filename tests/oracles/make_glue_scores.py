"""Make the golden of GLUE's figures: those of scikit-learn and scipy on random and on degenerate predictions.

Run it by any Python with scikit-learn and scipy, which the golden names with their versions:

    python tests/oracles/make_glue_scores.py
"""

import json
import math
import random
import warnings
from pathlib import Path
from typing import Any

import scipy
import sklearn
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

GOLDEN = Path(__file__).resolve().parent / "goldens" / "glue_scores.json"
SIZES = (2, 3, 7, 50, 408)
DEGENERATE_LABELS = [
    ([0, 0, 0], [0, 0, 0]), ([1, 1, 1], [1, 1, 1]), ([0, 0, 0], [1, 1, 1]), ([1, 1, 1], [0, 0, 0]),
    ([0, 0, 0, 0], [0, 1, 1, 0]), ([1, 1, 1, 1], [0, 1, 1, 0]), ([0, 1, 1, 0], [0, 0, 0, 0]), ([0, 1, 1, 0], [1, 1, 1, 1]),
    ([0, 1], [1, 0]), ([1], [1]), ([0], [1]),
]  # fmt: skip
DEGENERATE_SCORES = [
    ([1.5, 1.5, 1.5], [0.0, 2.0, 5.0]), ([0.0, 2.0, 5.0], [3.0, 3.0, 3.0]), ([2.0, 2.0], [3.0, 3.0]),
    ([0.0, 1.0], [4.0, 2.0]), ([1e-9, 2e-9, 4e-9], [0.0, 2.5, 5.0]), ([-3.0, 8.0, 8.0, 8.0], [0.0, 0.0, 5.0, 5.0]),
]  # fmt: skip


def score_labels(predicted: list[int], wanted: list[int]) -> dict[str, Any]:
    """Return a case of labels 0 and 1."""
    figures = {
        "accuracy": accuracy_score(wanted, predicted),
        "f1": f1_score(wanted, predicted, zero_division=0),
        "matthews_correlation": matthews_corrcoef(wanted, predicted),
    }
    return {"predicted": predicted, "wanted": wanted, "figures": {name: float(value) for name, value in figures.items()}}


def score_numbers(predicted: list[float], wanted: list[float]) -> dict[str, Any]:
    """Return a case of scores; a correlation that is NaN is null."""
    figures = {
        "pearson_correlation": float(pearsonr(predicted, wanted)[0]),
        "spearman_correlation": float(spearmanr(predicted, wanted)[0]),
    }
    shown = {name: None if math.isnan(value) else value for name, value in figures.items()}
    return {"predicted": predicted, "wanted": wanted, "figures": shown}


def main() -> None:
    """Write the golden."""
    warnings.simplefilter("ignore")  # of constant input
    chance = random.Random(0)
    labels = [([chance.randint(0, 1) for _ in range(size)], [chance.randint(0, 1) for _ in range(size)]) for size in SIZES]
    rare = [([int(chance.random() < 0.1) for _ in range(60)], [int(chance.random() < 0.9) for _ in range(60)])]
    scores = [
        ([round(chance.gauss(2.5, 2), 3) for _ in range(size)], [chance.randint(0, 25) / 5 for _ in range(size)])
        for size in SIZES
    ]
    ties = [([float(chance.randint(0, 3)) for _ in range(80)], [float(chance.randint(0, 5)) for _ in range(80)])]
    golden = {
        "scikit-learn": sklearn.__version__,
        "scipy": scipy.__version__,
        "labels": [score_labels(*case) for case in [*labels, *rare, *DEGENERATE_LABELS]],
        "scores": [score_numbers(*case) for case in [*scores, *ties, *DEGENERATE_SCORES]],
    }
    GOLDEN.write_text(json.dumps(golden) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
