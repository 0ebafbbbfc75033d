"""Training equals each original's own program, step for step; a planted fault makes that false from a named step on."""

from pathlib import Path

import planted_faults as faults
import pytest
from comparison import Comparison, compare
from golden_files import STEPS, read_golden
from originals import BY_NAME, ORACLES
from our_runs import Oracle, train


def compare_steps(oracle: Oracle, folder: Path, steps: int = STEPS) -> Comparison:
    golden = read_golden(oracle.name)
    return compare(oracle, golden, train(oracle, golden.initial, folder, steps))


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_training_equals_the_original_program(oracle: Oracle, tmp_path: Path) -> None:
    assert compare_steps(oracle, tmp_path).first is None


# Fault, original, the steps that are trained, and the beginning of the first difference.
FAULTS = [
    (faults.LEARNING_RATE, "nanogpt", 2, "step 1: the learning rate is"),
    (faults.SCHEDULE, "nanogpt", 2, "step 1: the learning rate is"),
    (faults.BETAS, "nanogpt", 4, "step 3: the loss is"),
    (faults.DECAY, "nanogpt", 3, "step 2: the gradient norm is"),
    (faults.ORDER, "nanogpt", 5, "step 4: the batch has sha256"),
    (faults.DIVISOR, "nanogpt", 2, "step 1: the loss is"),
    (faults.CLIPPING, "nanogpt", 4, "step 3: the loss is"),
]


@pytest.mark.parametrize(("fault", "name", "steps", "found"), FAULTS, ids=lambda value: getattr(value, "name", value))
def test_a_planted_fault_is_named_with_its_first_step(
    fault: faults.Fault, name: str, steps: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)
    first = compare_steps(BY_NAME[name], tmp_path, steps).first
    assert first is not None
    assert first.startswith(found), first
