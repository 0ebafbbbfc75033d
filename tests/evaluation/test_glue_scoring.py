"""GLUE's figures against those of scikit-learn and scipy, which tests/oracles/make_glue_scores.py records."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.evaluation.fine_tuning.glue_scoring import METRICS, score_predictions

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "oracles" / "goldens" / "glue_scores.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("kind", ["labels", "scores"])
def test_figures_are_those_of_scikit_learn_and_scipy(kind: str) -> None:
    seen = set()
    for number, case in enumerate(GOLDEN[kind]):
        predicted, wanted = np.array(case["predicted"]), np.array(case["wanted"])
        for name, expected in case["figures"].items():
            found = METRICS[name](predicted, wanted)
            seen.add((name, expected is None))
            expected = math.nan if expected is None else expected
            assert found == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True), f"{kind} {number}: {name}"
    both = {(name, undefined) for name in ("pearson_correlation", "spearman_correlation") for undefined in (False, True)}
    assert seen == (both if kind == "scores" else {(name, False) for name in ("accuracy", "f1", "matthews_correlation")})


def test_figures_by_hand() -> None:
    predicted, wanted = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert score_predictions(("accuracy", "f1", "matthews_correlation"), predicted, wanted) == pytest.approx(
        {"accuracy": 3 / 5, "f1": 2 / 3, "matthews_correlation": (2 * 1 - 1 * 1) / 6}
    )


def test_an_undefined_correlation_is_recorded_as_0() -> None:
    constant, numbers = np.array([2.0, 2.0, 2.0]), np.array([0.0, 1.0, 5.0])
    names = ("pearson_correlation", "spearman_correlation")
    assert all(math.isnan(METRICS[name](constant, numbers)) for name in names)
    assert score_predictions(names, constant, numbers) == dict.fromkeys(names, 0.0)
    assert score_predictions(names, np.array([2.0]), np.array([1.0])) == dict.fromkeys(names, 0.0)
